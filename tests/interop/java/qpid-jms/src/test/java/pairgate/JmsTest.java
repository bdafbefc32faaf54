package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.BytesMessage;
import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.jupiter.api.Test;
import org.springframework.jms.connection.CachingConnectionFactory;
import org.springframework.jms.core.JmsTemplate;
import org.springframework.jms.listener.DefaultMessageListenerContainer;

/** Qpid JMS, as its documentation connects it to Service Bus: a policy's name and key by SASL PLAIN. */
class JmsTest {
    private static final String TLS = System.getenv("INTEROP_TLS_PORT");
    private static final String PLAIN = System.getenv("INTEROP_PLAIN_PORT");
    private static final String USER = "RootManageSharedAccessKey";
    private static final String KEY = "SAS_KEY_VALUE";
    private static final long WAIT = 10_000;

    private static JmsConnectionFactory factory(String uri) {
        return new JmsConnectionFactory(USER, KEY, uri);
    }

    private static Connection connect(String uri) throws JMSException {
        Connection connection = factory(uri).createConnection();
        connection.start();
        return connection;
    }

    private static Connection connect() throws JMSException {
        return connect("amqps://localhost:" + TLS + "?amqp.idleTimeout=120000&jms.prefetchPolicy.all=0");
    }

    /** Creates an entity over REST, since JMS has no administration. */
    private static String created(String path, String kind, String options) {
        try {
            String resource = "http://localhost:" + PLAIN + "/";
            long expiry = System.currentTimeMillis() / 1000 + 600;
            String encoded = java.net.URLEncoder.encode(resource, "UTF-8");
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(KEY.getBytes(), "HmacSHA256"));
            String signature = java.net.URLEncoder.encode(
                java.util.Base64.getEncoder().encodeToString(mac.doFinal((encoded + "\n" + expiry).getBytes())), "UTF-8");
            String body = "<entry xmlns='http://www.w3.org/2005/Atom'><content type='application/xml'><" + kind
                + "Description xmlns='http://schemas.microsoft.com/netservices/2010/10/servicebus/connect'>" + options + "</" + kind
                + "Description></content></entry>";
            HttpRequest request = HttpRequest.newBuilder(URI.create(resource + path + "?api-version=2021-05"))
                .header("Authorization", "SharedAccessSignature sr=" + encoded + "&sig=" + signature + "&se=" + expiry + "&skn=" + USER)
                .header("Content-Type", "application/atom+xml").PUT(HttpRequest.BodyPublishers.ofString(body)).build();
            HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
            assertEquals(201, answer.statusCode(), answer.body());
            return path;
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
    }

    private static String queue() {
        return created("queue-" + UUID.randomUUID(), "Queue", "");
    }

    private static String topic(String... subscriptions) {
        String topic = created("topic-" + UUID.randomUUID(), "Topic", "");
        for (String each : subscriptions) {
            created(topic + "/subscriptions/" + each, "Subscription", "");
        }
        return topic;
    }

    private static void sendTo(String queue, String... bodies) throws JMSException {
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            MessageProducer producer = session.createProducer(session.createQueue(queue));
            for (String each : bodies) {
                producer.send(session.createTextMessage(each));
            }
        }
    }

    private static List<String> drained(String queue) throws JMSException {
        List<String> bodies = new ArrayList<>();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
            for (Message message; (message = consumer.receive(1500)) != null; ) {
                bodies.add(message.getBody(String.class));
            }
        }
        return bodies;
    }

    @Test
    void messagesAreReceivedInOrder() throws JMSException {
        String queue = queue();
        sendTo(queue, "a", "b", "c");
        assertEquals(List.of("a", "b", "c"), drained(queue));
    }

    @Test
    void propertiesAndHeadersComeBack() throws JMSException {
        String queue = queue();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            MessageProducer producer = session.createProducer(session.createQueue(queue));
            producer.setPriority(7);
            producer.setTimeToLive(60_000);
            TextMessage sent = session.createTextMessage("x");
            sent.setJMSCorrelationID("correlation");
            sent.setJMSType("type");
            sent.setJMSReplyTo(session.createQueue("answers"));
            sent.setStringProperty("text", "words");
            sent.setIntProperty("number", 7);
            sent.setLongProperty("long", 1L << 40);
            sent.setBooleanProperty("yes", true);
            sent.setDoubleProperty("half", 0.5);
            sent.setByteProperty("byte", (byte) 1);
            sent.setShortProperty("short", (short) 2);
            sent.setFloatProperty("float", 1.5f);
            sent.setStringProperty("JMSXGroupID", "group");
            producer.send(sent);
            Message received = session.createConsumer(session.createQueue(queue)).receive(WAIT);
            assertEquals(sent.getJMSMessageID(), received.getJMSMessageID());
            assertEquals("correlation", received.getJMSCorrelationID());
            assertEquals("type", received.getJMSType());
            assertEquals("answers", ((Queue) received.getJMSReplyTo()).getQueueName());
            assertEquals(queue, ((Queue) received.getJMSDestination()).getQueueName());
            assertEquals(7, received.getJMSPriority());
            assertEquals(DeliveryMode.PERSISTENT, received.getJMSDeliveryMode());
            assertFalse(received.getJMSRedelivered());
            assertTrue(received.getJMSExpiration() > System.currentTimeMillis());
            assertEquals(1, received.getIntProperty("JMSXDeliveryCount"));
            assertEquals("group", received.getStringProperty("JMSXGroupID"));
            assertEquals("words", received.getStringProperty("text"));
            assertEquals(7, received.getObjectProperty("number"));
            assertEquals(1L << 40, received.getObjectProperty("long"));
            assertEquals(true, received.getObjectProperty("yes"));
            assertEquals(0.5, received.getObjectProperty("half"));
            assertEquals((byte) 1, received.getObjectProperty("byte"));
            assertEquals((short) 2, received.getObjectProperty("short"));
            assertEquals(1.5f, received.getObjectProperty("float"));
        }
    }

    @Test
    void eachTypeOfMessageComesBack() throws JMSException {
        String queue = queue();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            MessageProducer producer = session.createProducer(session.createQueue(queue));
            BytesMessage bytes = session.createBytesMessage();
            bytes.writeBytes(new byte[] {0, 1, -1});
            MapMessage map = session.createMapMessage();
            map.setInt("one", 1);
            map.setBytes("bytes", new byte[] {2});
            StreamMessage stream = session.createStreamMessage();
            stream.writeInt(1);
            stream.writeString("two");
            ObjectMessage object = session.createObjectMessage(new ArrayList<>(List.of("three")));
            for (Message each : List.of(bytes, map, stream, object, session.createMessage(), session.createTextMessage(null))) {
                producer.send(each);
            }
            MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
            assertEquals(3, consumer.receive(WAIT).getBody(byte[].class).length);
            MapMessage gotMap = (MapMessage) consumer.receive(WAIT);
            assertEquals(1, gotMap.getInt("one"));
            assertEquals(2, gotMap.getBytes("bytes")[0]);
            StreamMessage gotStream = (StreamMessage) consumer.receive(WAIT);
            assertEquals(1, gotStream.readInt());
            assertEquals("two", gotStream.readString());
            assertTrue(consumer.receive(WAIT) instanceof ObjectMessage);
            assertNotNull(consumer.receive(WAIT));
            assertNull(((TextMessage) consumer.receive(WAIT)).getText());
        }
    }

    @Test
    void anAcknowledgementCoversWhatCameBefore() throws JMSException {
        String queue = queue();
        sendTo(queue, "a", "b", "c");
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
            consumer.receive(WAIT);
            consumer.receive(WAIT).acknowledge();
        }
        assertEquals(List.of("c"), drained(queue));
    }

    @Test
    void aRecoveredSessionGetsItsMessagesAgain() throws JMSException {
        String queue = queue();
        sendTo(queue, "a", "b");
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
            consumer.receive(WAIT);
            session.recover();
            Message again = consumer.receive(WAIT);
            assertEquals("a", again.getBody(String.class));
            assertTrue(again.getJMSRedelivered());
            consumer.receive(WAIT).acknowledge();
        }
        assertEquals(List.of(), drained(queue));
    }

    @Test
    void aTransactedSessionCommitsAndRollsBack() throws JMSException {
        String from = queue();
        String to = queue();
        sendTo(from, "a", "b");
        try (Connection connection = connect()) {
            Session session = connection.createSession(Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(session.createQueue(from));
            MessageProducer producer = session.createProducer(session.createQueue(to));
            producer.send(session.createTextMessage(consumer.receive(WAIT).getBody(String.class)));
            session.rollback();
            Message again = consumer.receive(WAIT);
            assertEquals("a", again.getBody(String.class));
            producer.send(session.createTextMessage("moved"));
            session.commit();
            producer.send(session.createTextMessage("never"));
            session.rollback();
        }
        assertEquals(List.of("moved"), drained(to));
        assertEquals(List.of("b"), drained(from));
    }

    @Test
    void aBrowserTakesNothing() throws JMSException {
        String queue = queue();
        sendTo(queue, "a", "b");
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            QueueBrowser browser = session.createBrowser(session.createQueue(queue));
            assertEquals(2, Collections.list(browser.getEnumeration()).size());
        }
        assertEquals(List.of("a", "b"), drained(queue));
    }

    @Test
    void aListenerGetsEachMessage() throws Exception {
        String queue = queue();
        CountDownLatch got = new CountDownLatch(20);
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            session.createConsumer(session.createQueue(queue)).setMessageListener(message -> got.countDown());
            Session other = connection.createSession();
            MessageProducer producer = other.createProducer(other.createQueue(queue));
            CountDownLatch sent = new CountDownLatch(20);
            for (int each = 0; each < 20; each++) {
                producer.send(other.createTextMessage("" + each), new CompletionListener() {
                    @Override
                    public void onCompletion(Message message) {
                        sent.countDown();
                    }

                    @Override
                    public void onException(Message message, Exception exception) {
                        exception.printStackTrace();
                    }
                });
            }
            assertTrue(sent.await(20, TimeUnit.SECONDS));
            assertTrue(got.await(20, TimeUnit.SECONDS));
        }
    }

    @Test
    void aSubscriptionIsReadByItsPath() throws JMSException {
        String topic = topic("mine");
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            session.createProducer(session.createTopic(topic)).send(session.createTextMessage("a"));
            // As Microsoft's documentation of JMS 1.1 and AMQP has it: a queue of this name.
            Message message = session.createConsumer(session.createQueue(topic + "/Subscriptions/mine")).receive(WAIT);
            assertEquals("a", message.getBody(String.class));
        }
    }

    @Test
    void aDurableSubscriptionKeepsMessages() throws JMSException {
        String topic = topic();
        JmsConnectionFactory factory = factory("amqps://localhost:" + TLS);
        factory.setClientID("client");
        try (Connection connection = factory.createConnection()) {
            connection.start();
            Session session = connection.createSession();
            session.createDurableSubscriber(session.createTopic(topic), "mine").close();
            session.createProducer(session.createTopic(topic)).send(session.createTextMessage("kept"));
        }
        try (Connection connection = factory.createConnection()) {
            connection.start();
            Session session = connection.createSession();
            MessageConsumer consumer = session.createDurableSubscriber(session.createTopic(topic), "mine");
            assertEquals("kept", consumer.receive(WAIT).getBody(String.class));
            consumer.close();
            session.unsubscribe("mine");
        }
    }

    @Test
    void aConsumerOfATopicGetsWhatIsPublishedMeanwhile() throws JMSException {
        String topic = topic();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            MessageConsumer consumer = session.createConsumer(session.createTopic(topic));
            session.createProducer(session.createTopic(topic)).send(session.createTextMessage("a"));
            assertEquals("a", consumer.receive(WAIT).getBody(String.class));
        }
    }

    @Test
    void aSelectorChoosesMessages() throws JMSException {
        String queue = queue();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            MessageProducer producer = session.createProducer(session.createQueue(queue));
            for (int each = 0; each < 3; each++) {
                Message message = session.createTextMessage("" + each);
                message.setIntProperty("number", each);
                producer.send(message);
            }
            MessageConsumer consumer = session.createConsumer(session.createQueue(queue), "number = 1");
            assertEquals("1", consumer.receive(WAIT).getBody(String.class));
            assertNull(consumer.receive(1000));
        }
    }

    @Test
    void aTemporaryQueueCarriesAnswers() throws JMSException {
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            Queue answers = session.createTemporaryQueue();
            session.createProducer(answers).send(session.createTextMessage("a"));
            assertEquals("a", session.createConsumer(answers).receive(WAIT).getBody(String.class));
        }
    }

    @Test
    void aDelayedMessageComesLater() throws JMSException {
        String queue = queue();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            MessageProducer producer = session.createProducer(session.createQueue(queue));
            producer.setDeliveryDelay(2000);
            long before = System.currentTimeMillis();
            producer.send(session.createTextMessage("later"));
            assertEquals("later", session.createConsumer(session.createQueue(queue)).receive(WAIT).getBody(String.class));
            assertTrue(System.currentTimeMillis() - before >= 1900);
        }
    }

    @Test
    void aMissingQueueIsReported() throws JMSException {
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            assertThrows(InvalidDestinationException.class, () -> session.createConsumer(session.createQueue("missing")));
            assertThrows(InvalidDestinationException.class, () -> session.createProducer(session.createQueue("missing")));
        }
    }

    @Test
    void aWrongKeyIsReported() {
        assertThrows(JMSException.class, () ->
            new JmsConnectionFactory(USER, "wrong", "amqps://localhost:" + TLS).createConnection().start());
    }

    @Test
    void aLargeMessageComesBack() throws JMSException {
        String queue = queue();
        String body = "x".repeat(900_000);
        sendTo(queue, body);
        assertEquals(List.of(body), drained(queue));
    }

    @Test
    void webSocketsConnect() throws JMSException {
        String queue = queue();
        for (String uri : List.of("amqpwss://localhost:" + TLS + "/$servicebus/websocket",
                "amqpws://localhost:" + PLAIN + "/$servicebus/websocket")) {
            try (Connection connection = connect(uri)) {
                Session session = connection.createSession();
                session.createProducer(session.createQueue(queue)).send(session.createTextMessage(uri));
                assertEquals(uri, session.createConsumer(session.createQueue(queue)).receive(WAIT).getBody(String.class));
            }
        }
    }

    @Test
    void aFailoverUriTakesTheGatewayThatIsThere() throws JMSException {
        String queue = queue();
        try (Connection connection = connect("failover:(amqp://localhost:1,amqp://localhost:" + PLAIN + ")")) {
            Session session = connection.createSession();
            session.createProducer(session.createQueue(queue)).send(session.createTextMessage("a"));
        }
        assertEquals(List.of("a"), drained(queue));
    }

    @Test
    void aContextSendsAndReceives() {
        String queue = queue();
        try (JMSContext context = factory("amqps://localhost:" + TLS).createContext()) {
            context.createProducer().setProperty("number", 1).send(context.createQueue(queue), "a");
            assertEquals("a", context.createConsumer(context.createQueue(queue)).receiveBody(String.class, WAIT));
        }
    }

    @Test
    void springsTemplateAndContainerWork() throws Exception {
        String queue = queue();
        CachingConnectionFactory cached = new CachingConnectionFactory(factory("amqps://localhost:" + TLS));
        CountDownLatch got = new CountDownLatch(10);
        DefaultMessageListenerContainer container = new DefaultMessageListenerContainer();
        container.setConnectionFactory(cached);
        container.setDestinationName(queue);
        container.setSessionTransacted(true);
        container.setConcurrentConsumers(2);
        container.setMessageListener((jakarta.jms.MessageListener) message -> got.countDown());
        container.afterPropertiesSet();
        container.start();
        JmsTemplate template = new JmsTemplate(cached);
        for (int each = 0; each < 10; each++) {
            template.convertAndSend(queue, "m" + each);
        }
        assertTrue(got.await(20, TimeUnit.SECONDS));
        container.shutdown();
        cached.destroy();
        assertEquals(List.of(), drained(queue));
    }
}
