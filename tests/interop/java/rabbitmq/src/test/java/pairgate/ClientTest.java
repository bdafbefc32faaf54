package pairgate;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.PossibleAuthenticationFailureException;
import com.rabbitmq.client.Return;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.api.Timeout;

/** The Java client's ways to publish and to consume. */
@Timeout(60)
class ClientTest {
  private Connection connection;
  private Channel channel;
  private String queue;

  static ConnectionFactory factory() {
    ConnectionFactory factory = new ConnectionFactory();
    factory.setHost("127.0.0.1");
    factory.setPort(Integer.parseInt(System.getenv("INTEROP_PORT")));
    return factory;
  }

  @BeforeEach
  void connect(TestInfo test) throws Exception {
    connection = factory().newConnection("interop");
    channel = connection.createChannel();
    queue = "java-" + test.getTestMethod().orElseThrow().getName();
    channel.queueDeclare(queue, true, false, false, null);
  }

  @AfterEach
  void close() throws Exception {
    if (connection.isOpen()) {
      connection.close();
    }
  }

  private void publish(String body) throws IOException {
    channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, body.getBytes());
  }

  private GetResponse get() throws Exception {
    for (int tries = 0; tries < 100; tries++) {
      GetResponse found = channel.basicGet(queue, false);
      if (found != null) {
        return found;
      }
      Thread.sleep(50);
    }
    return null;
  }

  @Test
  void confirmsAreWaitedFor() throws Exception {
    channel.confirmSelect();
    for (int number = 0; number < 200; number++) {
      publish("body " + number);
    }
    channel.waitForConfirmsOrDie(30_000);
    assertEquals(200, channel.messageCount(queue));
  }

  @Test
  void confirmsAreHeardInOrder() throws Exception {
    Set<Long> left = new ConcurrentSkipListSet<>();
    CountDownLatch all = new CountDownLatch(500);
    channel.confirmSelect();
    channel.addConfirmListener(
        (tag, multiple) -> {
          left.removeIf(each -> {
            boolean mine = multiple ? each <= tag : each == tag;
            if (mine) {
              all.countDown();
            }
            return mine;
          });
        },
        (tag, multiple) -> {});
    for (int number = 0; number < 500; number++) {
      left.add(channel.getNextPublishSeqNo());
      publish("x");
    }
    assertTrue(all.await(30, TimeUnit.SECONDS));
  }

  @Test
  void consumersAcknowledgeAndAreCancelled() throws Exception {
    for (int number = 0; number < 50; number++) {
      publish(String.valueOf(number));
    }
    LinkedBlockingQueue<String> seen = new LinkedBlockingQueue<>();
    channel.basicQos(5);
    String tag =
        channel.basicConsume(
            queue,
            false,
            (consumer, delivery) -> {
              seen.add(new String(delivery.getBody()));
              channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            },
            consumer -> {});
    for (int number = 0; number < 50; number++) {
      assertEquals(String.valueOf(number), seen.poll(10, TimeUnit.SECONDS));
    }
    channel.basicCancel(tag);
    assertEquals(0, channel.consumerCount(queue));
  }

  @Test
  void rejectedMessagesComeAgain() throws Exception {
    publish("again");
    GetResponse first = get();
    assertNotNull(first);
    assertFalse(first.getEnvelope().isRedeliver());
    channel.basicNack(first.getEnvelope().getDeliveryTag(), false, true);
    GetResponse second = get();
    assertNotNull(second);
    assertTrue(second.getEnvelope().isRedeliver());
    channel.basicReject(second.getEnvelope().getDeliveryTag(), false);
    assertNull(channel.basicGet(queue, true));
  }

  @Test
  void messagesWithoutARouteAreReturned() throws Exception {
    LinkedBlockingQueue<Return> returned = new LinkedBlockingQueue<>();
    channel.addReturnListener(returned::add);
    channel.confirmSelect();
    channel.basicPublish("amq.topic", "nowhere", true, null, "lost".getBytes());
    channel.waitForConfirmsOrDie(10_000);
    Return found = returned.poll(10, TimeUnit.SECONDS);
    assertNotNull(found);
    assertEquals(312, found.getReplyCode());
    assertEquals("lost", new String(found.getBody()));
  }

  @Test
  void transactionsAreCommittedOrRolledBack() throws Exception {
    channel.txSelect();
    publish("rolled back");
    channel.txRollback();
    publish("committed");
    channel.txCommit();
    GetResponse found = get();
    assertNotNull(found);
    assertEquals("committed", new String(found.getBody()));
    channel.txCommit();
  }

  @Test
  void callsGetTheirRepliesDirectly() throws Exception {
    Channel serving = connection.createChannel();
    RpcServer server =
        new RpcServer(serving, queue) {
          @Override
          public byte[] handleCall(byte[] body, BasicProperties properties) {
            return ("re: " + new String(body)).getBytes();
          }
        };
    Thread thread =
        new Thread(
            () -> {
              try {
                server.mainloop();
              } catch (IOException | ShutdownSignalException ended) {
                return;
              }
            });
    thread.start();
    RpcClientParams parameters =
        new RpcClientParams().channel(channel).exchange("").routingKey(queue).timeout(20_000);
    try (RpcClient client = new RpcClient(parameters)) {
      assertEquals("re: a question", client.stringCall("a question"));
    }
    server.terminateMainloop();
    thread.join(10_000);
  }

  @Test
  void exchangesRouteByHeadersAndByEachOther() throws Exception {
    channel.exchangeDeclare("java-headers", "headers", false, true, null);
    channel.exchangeDeclare("java-topic", "topic", false, true, null);
    channel.exchangeBind("java-headers", "java-topic", "order.#");
    channel.queueBind(queue, "java-headers", "", Map.of("x-match", "all", "vip", true, "n", 3));
    BasicProperties vip = new BasicProperties.Builder().headers(Map.of("vip", true, "n", 3)).build();
    channel.basicPublish("java-topic", "order.new", vip, "vip".getBytes());
    channel.basicPublish("java-topic", "order.new", null, "other".getBytes());
    GetResponse found = get();
    assertNotNull(found);
    assertEquals("vip", new String(found.getBody()));
    assertEquals(0, found.getMessageCount());
  }

  @Test
  void largeBodiesAndPropertiesAreKept() throws Exception {
    byte[] body = new byte[5_000_000];
    for (int at = 0; at < body.length; at++) {
      body[at] = (byte) at;
    }
    BasicProperties sent =
        new BasicProperties.Builder()
            .messageId("id")
            .correlationId("correlation")
            .contentType("application/octet-stream")
            .priority(3)
            .headers(Map.of("text", "value", "number", 7L))
            .build();
    channel.basicPublish("", queue, sent, body);
    GetResponse found = get();
    assertNotNull(found);
    assertArrayEquals(body, found.getBody());
    assertEquals("correlation", found.getProps().getCorrelationId());
    assertEquals(7L, found.getProps().getHeaders().get("number"));
  }

  @Test
  void anErrorClosesItsChannelAlone() throws Exception {
    Channel other = connection.createChannel();
    IOException error = assertThrows(IOException.class, () -> other.queueDeclarePassive("missing"));
    assertTrue(error.getCause().getMessage().contains("404"));
    assertThrows(AlreadyClosedException.class, () -> other.queueDelete(queue));
    assertTrue(channel.isOpen());
    assertEquals(0, channel.messageCount(queue));
  }

  @Test
  void aWrongPasswordIsToldAsSuch() {
    ConnectionFactory wrong = factory();
    wrong.setPassword("wrong");
    assertThrows(PossibleAuthenticationFailureException.class, wrong::newConnection);
  }
}
