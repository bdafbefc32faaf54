package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;

/** Spring AMQP's template publishes while the broker is killed, and while it's frozen. */
@Timeout(600)
class OutageTest {
  private static final int MESSAGES = 10_000;
  private static final int RATE = 250; // messages a second
  private static final int MOST = 200; // that have no confirm yet
  // For the next message, at the end: the broker may just start, and the backlog come home.
  private static final int PATIENCE = 120_000; // milliseconds
  private static final int IDLE = 5_000; // milliseconds for a copy, once all messages are there

  @Test
  void noPublisherNoticesABrokerThatIsKilled() throws Exception {
    survives("killed");
  }

  @Test
  void noPublisherNoticesABrokerThatIsFrozen() throws Exception {
    survives("frozen");
  }

  private static void survives(String harm) throws Exception {
    CachingConnectionFactory connections = new CachingConnectionFactory(ClientTest.factory());
    connections.setPublisherConfirmType(ConfirmType.CORRELATED);
    try {
      RabbitTemplate template = new RabbitTemplate(connections);
      String queue = "spring-" + harm;
      new RabbitAdmin(connections).declareQueue(QueueBuilder.durable(queue).quorum().build());
      Path folder = Path.of(System.getenv("INTEROP_HARMS"));
      Files.createFile(folder.resolve(harm));
      double longest = publish(template, queue);
      int copies = drain(template, queue);
      String told = "%d confirmed, the longest after %.2f s; %d copies";
      Files.writeString(
          folder.resolve(harm + ".figures"), told.formatted(MESSAGES, longest, copies));
    } finally {
      connections.destroy();
    }
  }

  /** The longest time from a publish to its confirm, in seconds. */
  private static double publish(RabbitTemplate template, String queue) throws Exception {
    List<CorrelationData> sent = new ArrayList<>();
    Semaphore slots = new Semaphore(MOST);
    AtomicLong longest = new AtomicLong();
    long begin = System.nanoTime();
    for (int number = 0; number < MESSAGES; number++) {
      long due = begin + TimeUnit.SECONDS.toNanos(number) / RATE;
      TimeUnit.NANOSECONDS.sleep(due - System.nanoTime());
      slots.acquire();
      CorrelationData data = new CorrelationData(String.valueOf(number));
      long asked = System.nanoTime();
      template.convertAndSend("", queue, String.valueOf(number), data);
      data.getFuture()
          .whenComplete(
              (confirm, error) -> {
                longest.accumulateAndGet(System.nanoTime() - asked, Math::max);
                slots.release();
              });
      sent.add(data);
    }
    for (CorrelationData each : sent) {
      assertTrue(each.getFuture().get(60, TimeUnit.SECONDS).ack());
    }
    return longest.get() / 1e9;
  }

  /** Takes all messages; returns how many came more than once. */
  private static int drain(RabbitTemplate template, String queue) {
    Set<String> seen = new HashSet<>();
    int copies = 0;
    while (true) {
      Message message = template.receive(queue); // without a consumer
      if (message == null) {
        message = template.receive(queue, seen.size() < MESSAGES ? PATIENCE : IDLE);
      }
      if (message == null) {
        assertEquals(MESSAGES, seen.size(), "messages that aren't lost");
        return copies;
      }
      copies += seen.add(new String(message.getBody())) ? 0 : 1;
    }
  }
}
