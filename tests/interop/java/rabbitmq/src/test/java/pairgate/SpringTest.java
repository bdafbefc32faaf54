package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.api.Timeout;
import org.springframework.amqp.AmqpException;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.core.QueueInformation;
import org.springframework.amqp.core.ReturnedMessage;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.adapter.MessageListenerAdapter;

/** Spring AMQP: templates, containers of listeners, administration. */
@Timeout(60)
class SpringTest {
  private CachingConnectionFactory connections;
  private RabbitTemplate template;
  private RabbitAdmin admin;
  private String queue;

  @BeforeEach
  void connect(TestInfo test) {
    connections = new CachingConnectionFactory(ClientTest.factory());
    connections.setPublisherConfirmType(ConfirmType.CORRELATED);
    connections.setPublisherReturns(true);
    template = new RabbitTemplate(connections);
    template.setReceiveTimeout(10_000);
    template.setReplyTimeout(20_000);
    template.setMandatory(true);
    admin = new RabbitAdmin(connections);
    queue = "spring-" + test.getTestMethod().orElseThrow().getName();
    admin.declareQueue(new Queue(queue));
  }

  @AfterEach
  void close() {
    connections.destroy();
  }

  @Test
  void aTemplateSendsAndReceives() {
    template.convertAndSend(queue, "hello");
    assertEquals("hello", template.receiveAndConvert(queue));
  }

  @Test
  void confirmsAreCorrelated() throws Exception {
    List<CorrelationData> sent = new ArrayList<>();
    for (int number = 0; number < 100; number++) {
      CorrelationData data = new CorrelationData(String.valueOf(number));
      template.convertAndSend("", queue, "body " + number, data);
      sent.add(data);
    }
    for (CorrelationData each : sent) {
      assertTrue(each.getFuture().get(30, TimeUnit.SECONDS).ack());
    }
  }

  @Test
  void aMessageWithoutARouteIsReturnedAndConfirmed() throws Exception {
    CorrelationData data = new CorrelationData("lost");
    template.convertAndSend("amq.topic", "nowhere", "lost", data);
    assertTrue(data.getFuture().get(30, TimeUnit.SECONDS).ack());
    ReturnedMessage returned = data.getReturned();
    assertNotNull(returned);
    assertEquals(312, returned.getReplyCode());
  }

  @Test
  void aListenerRepliesDirectly() {
    SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(connections);
    container.setQueueNames(queue);
    container.setMessageListener(new MessageListenerAdapter(new Answering(), "answer"));
    container.start();
    try {
      assertEquals("re: a question", template.convertSendAndReceive(queue, "a question"));
    } finally {
      container.stop();
    }
  }

  /** The methods of a listener. */
  public static class Answering {
    public String answer(String question) {
      return "re: " + question;
    }
  }

  @Test
  void whatAListenerRejectsIsDeadLettered() {
    String dead = queue + "-dead";
    String rejecting = queue + "-rejecting";
    admin.declareQueue(new Queue(dead));
    admin.declareQueue(
        QueueBuilder.durable(rejecting).deadLetterExchange("").deadLetterRoutingKey(dead).build());
    DirectMessageListenerContainer container = new DirectMessageListenerContainer(connections);
    container.setQueueNames(rejecting);
    container.setConsumersPerQueue(2);
    container.setMessageListener(
        message -> {
          throw new AmqpRejectAndDontRequeueException("not wanted");
        });
    container.start();
    try {
      template.convertAndSend(rejecting, "poison");
      Message found = template.receive(dead);
      assertNotNull(found);
      assertEquals("rejected", found.getMessageProperties().getXDeathHeader().get(0).get("reason"));
    } finally {
      container.stop();
    }
  }

  @Test
  void concurrentListenersGetEachMessageOnce() throws Exception {
    LinkedBlockingQueue<String> seen = new LinkedBlockingQueue<>();
    SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(connections);
    container.setQueueNames(queue);
    container.setConcurrentConsumers(3);
    container.setPrefetchCount(10);
    container.setMessageListener(message -> seen.add(new String(message.getBody())));
    container.start();
    try {
      for (int number = 0; number < 200; number++) {
        template.convertAndSend(queue, String.valueOf(number));
      }
      List<String> found = new ArrayList<>();
      while (found.size() < 200) {
        String each = seen.poll(10, TimeUnit.SECONDS);
        assertNotNull(each);
        found.add(each);
      }
      assertEquals(200, found.stream().distinct().count());
      assertNull(seen.poll(200, TimeUnit.MILLISECONDS));
    } finally {
      container.stop();
    }
  }

  @Test
  void aTransactionIsRolledBackByAnError() {
    RabbitTemplate transacted =
        new RabbitTemplate(new CachingConnectionFactory(ClientTest.factory()));
    transacted.setChannelTransacted(true);
    assertThrows(
        AmqpException.class,
        () ->
            transacted.execute(
                channel -> {
                  channel.basicPublish("", queue, null, "undone".getBytes());
                  throw new IllegalStateException("undo it");
                }));
    QueueInformation found = admin.getQueueInfo(queue);
    assertNotNull(found);
    assertEquals(0, found.getMessageCount());
    ((CachingConnectionFactory) transacted.getConnectionFactory()).destroy();
  }

  @Test
  void queuesAreDeclaredPurgedAndDeleted() throws Exception {
    for (String body : List.of("one", "two")) {
      CorrelationData data = new CorrelationData(body);
      template.convertAndSend("", queue, body, data);
      assertTrue(data.getFuture().get(30, TimeUnit.SECONDS).ack());
    }
    assertEquals(2, admin.purgeQueue(queue));
    assertTrue(admin.deleteQueue(queue));
    assertNull(admin.getQueueInfo(queue));
  }
}
