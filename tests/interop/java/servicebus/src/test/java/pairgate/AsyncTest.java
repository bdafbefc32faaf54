package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.azure.core.amqp.AmqpTransportType;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;
import reactor.core.publisher.Mono;

/** The asynchronous clients, the processors, and AMQP over WebSocket. */
class AsyncTest {
    private static final Duration LIMIT = Duration.ofSeconds(30);

    private static String[] numbers(int count) {
        String[] bodies = new String[count];
        for (int each = 0; each < count; each++) {
            bodies[each] = "m" + each;
        }
        return bodies;
    }

    private static List<String> bodies(List<ServiceBusReceivedMessage> messages) {
        List<String> found = new ArrayList<>();
        messages.forEach(each -> found.add(each.getBody().toString()));
        return found;
    }

    private static boolean empty(String queue) {
        try (var receiver = Gateway.receiver(queue)) {
            return receiver.peekMessage() == null;
        }
    }

    @Test
    void manyMessagesAreSentAndReceived() {
        String queue = Gateway.queue();
        try (var sender = Gateway.builder().sender().queueName(queue).buildAsyncClient();
             var receiver = Gateway.builder().receiver().queueName(queue).prefetchCount(20).disableAutoComplete().buildAsyncClient()) {
            for (String each : numbers(50)) {
                sender.sendMessage(new ServiceBusMessage(each)).block(LIMIT);
            }
            var received = receiver.receiveMessages()
                .concatMap(each -> receiver.complete(each).thenReturn(each)).take(50).collectList().block(LIMIT);
            assertEquals(List.of(numbers(50)), bodies(received));
        }
        assertTrue(empty(queue));
    }

    @Test
    void messagesAreCompletedByTheClient() {
        String queue = Gateway.queue();
        Gateway.send(queue, numbers(10));
        try (var receiver = Gateway.builder().receiver().queueName(queue).buildAsyncClient()) {
            assertEquals(10, receiver.receiveMessages().take(10).collectList().block(LIMIT).size());
        }
        assertTrue(empty(queue));
    }

    @Test
    void aSessionIsReceived() {
        String queue = Gateway.sessionQueue();
        try (var sender = Gateway.sender(queue)) {
            for (String each : numbers(5)) {
                sender.sendMessage(new ServiceBusMessage(each).setSessionId("one"));
            }
        }
        try (var client = Gateway.builder().sessionReceiver().queueName(queue).disableAutoComplete().buildAsyncClient()) {
            var receiver = client.acceptNextSession().block(LIMIT);
            receiver.setSessionState(new byte[] {1}).block(LIMIT);
            assertEquals(1, receiver.getSessionState().block(LIMIT)[0]);
            var received = receiver.receiveMessages()
                .concatMap(each -> receiver.complete(each).thenReturn(each)).take(5).collectList().block(LIMIT);
            assertEquals(List.of(numbers(5)), bodies(received));
            receiver.close();
        }
    }

    @Test
    void aTransactionMovesAMessage() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a");
        try (var receiver = Gateway.builder().receiver().queueName(queue).disableAutoComplete().buildAsyncClient()) {
            var message = receiver.receiveMessages().next().block(LIMIT);
            receiver.createTransaction().flatMap(transaction ->
                receiver.complete(message, new CompleteOptions().setTransactionContext(transaction))
                    .then(receiver.commitTransaction(transaction))).block(LIMIT);
        }
        assertTrue(empty(queue));
    }

    @Test
    void longWorkKeepsItsLock() {
        String queue = Gateway.queue(new CreateQueueOptions().setLockDuration(Duration.ofSeconds(5)));
        Gateway.send(queue, "a");
        try (var receiver = Gateway.builder().receiver().queueName(queue).disableAutoComplete()
                .maxAutoLockRenewDuration(Duration.ofMinutes(1)).buildAsyncClient()) {
            receiver.receiveMessages()
                .concatMap(each -> Mono.delay(Duration.ofSeconds(12)).then(receiver.complete(each)).thenReturn(each))
                .take(1).blockLast(LIMIT);
        }
        assertTrue(empty(queue));
    }

    @Test
    void aProcessorHandlesEachMessageOnce() throws InterruptedException {
        String queue = Gateway.queue();
        Gateway.send(queue, numbers(30));
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch done = new CountDownLatch(30);
        AtomicInteger errors = new AtomicInteger();
        try (var processor = Gateway.builder().processor().queueName(queue).maxConcurrentCalls(4)
                .processMessage(context -> {
                    seen.add(context.getMessage().getBody().toString());
                    done.countDown();
                })
                .processError(context -> errors.incrementAndGet()).buildProcessorClient()) {
            processor.start();
            assertTrue(done.await(30, TimeUnit.SECONDS));
            Thread.sleep(500);
        }
        assertEquals(Set.of(numbers(30)), seen);
        assertEquals(0, errors.get());
        assertTrue(empty(queue));
    }

    @Test
    void aProcessorRepeatsAndDeadLettersWhatFails() throws InterruptedException {
        String queue = Gateway.queue(new CreateQueueOptions().setMaxDeliveryCount(2));
        Gateway.send(queue, "bad", "good");
        CountDownLatch done = new CountDownLatch(3);
        try (var processor = Gateway.builder().processor().queueName(queue)
                .processMessage(context -> {
                    done.countDown();
                    if (context.getMessage().getBody().toString().equals("bad")) {
                        throw new IllegalStateException("bad");
                    }
                })
                .processError(context -> { }).buildProcessorClient();
             var dead = Gateway.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE)
                 .disableAutoComplete().buildClient()) {
            processor.start();
            assertTrue(done.await(30, TimeUnit.SECONDS));
            assertEquals("bad", dead.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow().getBody().toString());
        }
    }

    @Test
    void aSessionProcessorKeepsTheOrderOfEachSession() throws InterruptedException {
        String queue = Gateway.sessionQueue();
        try (var sender = Gateway.sender(queue)) {
            for (int each = 0; each < 40; each++) {
                sender.sendMessage(new ServiceBusMessage("" + each).setSessionId("s" + each % 4));
            }
        }
        ConcurrentHashMap<String, List<Integer>> seen = new ConcurrentHashMap<>();
        CountDownLatch done = new CountDownLatch(40);
        try (var processor = Gateway.builder().sessionProcessor().queueName(queue).maxConcurrentSessions(2)
                .sessionIdleTimeout(Duration.ofSeconds(2))
                .processMessage(context -> {
                    seen.computeIfAbsent(context.getMessage().getSessionId(), key -> new ArrayList<>())
                        .add(Integer.parseInt(context.getMessage().getBody().toString()));
                    done.countDown();
                })
                .processError(context -> { }).buildProcessorClient()) {
            processor.start();
            assertTrue(done.await(40, TimeUnit.SECONDS));
        }
        assertEquals(4, seen.size());
        seen.values().forEach(each -> assertEquals(each.stream().sorted().toList(), each));
    }

    @Test
    void aProcessorOfASubscriptionIsStoppedAndStartedAgain() throws InterruptedException {
        String topic = Gateway.topic("mine");
        AtomicInteger count = new AtomicInteger();
        try (var processor = Gateway.builder().processor().topicName(topic).subscriptionName("mine")
                .processMessage(context -> count.incrementAndGet()).processError(context -> { }).buildProcessorClient();
             var sender = Gateway.builder().sender().topicName(topic).buildClient()) {
            processor.start();
            sender.sendMessage(new ServiceBusMessage("a"));
            await(() -> count.get() == 1);
            processor.stop();
            Thread.sleep(2000);  // its link closes in the background, and would keep a message locked
            sender.sendMessage(new ServiceBusMessage("b"));
            processor.start();
            await(() -> count.get() == 2);
        }
    }

    @Test
    void everythingWorksOverWebSockets() {
        String queue = Gateway.sessionQueue();
        Supplier<ServiceBusClientBuilder> builder = () -> Gateway.builder().transportType(AmqpTransportType.AMQP_WEB_SOCKETS);
        try (var sender = builder.get().sender().queueName(queue).buildClient();
             var client = builder.get().sessionReceiver().queueName(queue).disableAutoComplete().buildClient()) {
            sender.sendMessage(new ServiceBusMessage("x".repeat(200_000)).setSessionId("one"));
            sender.scheduleMessage(new ServiceBusMessage("later").setSessionId("one"), OffsetDateTime.now());
            try (var receiver = client.acceptNextSession()) {
                var message = receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow();
                assertEquals(200_000, message.getBody().getLength());
                var transaction = receiver.createTransaction();
                receiver.complete(message, new CompleteOptions().setTransactionContext(transaction));
                receiver.commitTransaction(transaction);
                assertEquals("later", receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow().getBody().toString());
            }
        }
    }

    private static void await(Supplier<Boolean> condition) throws InterruptedException {
        long end = System.nanoTime() + LIMIT.toNanos();
        while (!condition.get()) {
            assertTrue(System.nanoTime() < end, "not in time");
            Thread.sleep(50);
        }
    }
}
