package pairgate;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.azure.core.amqp.models.AmqpAnnotatedMessage;
import com.azure.core.amqp.models.AmqpMessageBody;
import com.azure.core.util.BinaryData;
import com.azure.core.util.IterableStream;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.ServiceBusMessageState;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** The synchronous clients: each way to send, to receive and to settle. */
class SyncTest {
    private static ServiceBusReceivedMessage one(ServiceBusReceiverClient receiver) {
        return receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow();
    }

    private static void assertEmpty(ServiceBusReceiverClient receiver) {
        assertEquals(0, receiver.receiveMessages(1, Duration.ofSeconds(1)).stream().count());
    }

    @Test
    void messagesAreSentAndCompletedInOrder() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a", "b", "c");
        try (var receiver = Gateway.receiver(queue)) {
            for (String body : List.of("a", "b", "c")) {
                var message = one(receiver);
                assertEquals(body, message.getBody().toString());
                receiver.complete(message);
            }
            assertEmpty(receiver);
        }
    }

    @Test
    void everyPropertyComesBack() {
        String queue = Gateway.queue();
        var message = new ServiceBusMessage(BinaryData.fromBytes(new byte[] {0, 1, -1}))
            .setMessageId("id").setCorrelationId("correlation").setSubject("subject").setTo("to")
            .setReplyTo("reply").setReplyToSessionId("session").setContentType("text/plain")
            .setTimeToLive(Duration.ofMinutes(5)).setPartitionKey("key");
        UUID uuid = UUID.randomUUID();
        Date date = new Date(1700000000123L);
        Map<String, Object> sent = Map.ofEntries(
            Map.entry("text", "words"), Map.entry("int", 7), Map.entry("long", 1L << 40), Map.entry("double", 1.5),
            Map.entry("float", 2.5f), Map.entry("true", true), Map.entry("byte", (byte) 3), Map.entry("short", (short) 4),
            Map.entry("char", 'c'), Map.entry("uuid", uuid), Map.entry("date", date));
        message.getApplicationProperties().putAll(sent);
        try (var sender = Gateway.sender(queue); var receiver = Gateway.receiver(queue)) {
            sender.sendMessage(message);
            var received = one(receiver);
            assertArrayEquals(new byte[] {0, 1, -1}, received.getBody().toBytes());
            assertEquals("id", received.getMessageId());
            assertEquals("correlation", received.getCorrelationId());
            assertEquals("subject", received.getSubject());
            assertEquals("to", received.getTo());
            assertEquals("reply", received.getReplyTo());
            assertEquals("session", received.getReplyToSessionId());
            assertEquals("text/plain", received.getContentType());
            assertEquals("key", received.getPartitionKey());
            assertEquals(Duration.ofMinutes(5), received.getTimeToLive());
            assertEquals(sent, received.getApplicationProperties());
            assertEquals(1, received.getSequenceNumber());
            assertEquals(0, received.getDeliveryCount());
            assertEquals(ServiceBusMessageState.ACTIVE, received.getState());
            assertNotNull(received.getEnqueuedTime());
            assertTrue(received.getLockedUntil().isAfter(OffsetDateTime.now()));
            assertTrue(received.getExpiresAt().isAfter(OffsetDateTime.now()));
            assertFalse(received.getLockToken().isEmpty());
            assertNull(received.getDeadLetterReason());
            receiver.complete(received);
        }
    }

    @Test
    void valueAndSequenceBodiesComeBack() {
        String queue = Gateway.queue();
        try (var sender = Gateway.sender(queue); var receiver = Gateway.receiver(queue)) {
            sender.sendMessage(new ServiceBusMessage(AmqpMessageBody.fromValue("text")));
            sender.sendMessage(new ServiceBusMessage(AmqpMessageBody.fromSequence(List.of(1, "two", 3L))));
            var value = one(receiver);
            assertEquals("text", value.getRawAmqpMessage().getBody().getValue());
            receiver.complete(value);
            var sequence = one(receiver);
            assertEquals(List.of(1, "two", 3L), sequence.getRawAmqpMessage().getBody().getSequence());
            receiver.complete(sequence);
        }
    }

    @Test
    void aDeliveryAnnotationAndThePriorityComeBack() {
        String queue = Gateway.queue();
        var message = new ServiceBusMessage("x");
        AmqpAnnotatedMessage raw = message.getRawAmqpMessage();
        raw.getDeliveryAnnotations().put("hop", 6);
        raw.getHeader().setPriority((short) 7);
        try (var sender = Gateway.sender(queue); var receiver = Gateway.receiver(queue)) {
            sender.sendMessage(message);
            var received = one(receiver).getRawAmqpMessage();
            assertEquals(6, received.getDeliveryAnnotations().get("hop"));
            assertEquals((short) 7, received.getHeader().getPriority());
        }
    }

    @Test
    void anAbandonedMessageComesAgainWithItsProperties() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a");
        try (var receiver = Gateway.receiver(queue)) {
            receiver.abandon(one(receiver), new AbandonOptions().setPropertiesToModify(Map.of("try", 1)));
            var again = one(receiver);
            assertEquals(1, again.getDeliveryCount());
            assertEquals(1, again.getApplicationProperties().get("try"));
            receiver.complete(again);
            assertEmpty(receiver);
        }
    }

    @Test
    void aDeadLetterHasItsReason() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a");
        try (var receiver = Gateway.receiver(queue);
             var dead = Gateway.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE)
                 .disableAutoComplete().buildClient()) {
            receiver.deadLetter(one(receiver), new DeadLetterOptions().setDeadLetterReason("bad")
                .setDeadLetterErrorDescription("very bad").setPropertiesToModify(Map.of("step", "two")));
            var letter = one(dead);
            assertEquals("bad", letter.getDeadLetterReason());
            assertEquals("very bad", letter.getDeadLetterErrorDescription());
            assertEquals("two", letter.getApplicationProperties().get("step"));
            assertEquals("a", letter.getMessageId());
            dead.complete(letter);
            assertEmpty(receiver);
        }
    }

    @Test
    void aMessageIsDeadLetteredAfterItsLastDelivery() {
        String queue = Gateway.queue(new CreateQueueOptions().setMaxDeliveryCount(2));
        Gateway.send(queue, "a");
        try (var receiver = Gateway.receiver(queue);
             var dead = Gateway.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE)
                 .disableAutoComplete().buildClient()) {
            receiver.abandon(one(receiver));
            receiver.abandon(one(receiver));
            assertEquals("MaxDeliveryCountExceeded", one(dead).getDeadLetterReason());
        }
    }

    @Test
    void aDeferredMessageIsReceivedByItsNumber() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a");
        try (var receiver = Gateway.receiver(queue)) {
            var message = one(receiver);
            receiver.defer(message, new DeferOptions().setPropertiesToModify(Map.of("later", true)));
            assertEmpty(receiver);
            var deferred = receiver.receiveDeferredMessage(message.getSequenceNumber());
            assertEquals("a", deferred.getBody().toString());
            assertEquals(ServiceBusMessageState.DEFERRED, deferred.getState());
            assertEquals(true, deferred.getApplicationProperties().get("later"));
            receiver.complete(deferred);
            assertThrows(ServiceBusException.class, () -> receiver.receiveDeferredMessage(message.getSequenceNumber()));
        }
    }

    @Test
    void severalDeferredMessagesAreReceivedAtOnce() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a", "b");
        try (var receiver = Gateway.receiver(queue)) {
            var numbers = new java.util.ArrayList<Long>();
            for (int each = 0; each < 2; each++) {
                var message = one(receiver);
                receiver.defer(message);
                numbers.add(message.getSequenceNumber());
            }
            var found = receiver.receiveDeferredMessageBatch(numbers).stream().collect(Collectors.toList());
            assertEquals(2, found.size());
            found.forEach(each -> receiver.deadLetter(each));
        }
    }

    @Test
    void peekedMessagesStay() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a", "b", "c");
        try (var receiver = Gateway.receiver(queue)) {
            assertEquals("a", receiver.peekMessage().getBody().toString());
            IterableStream<ServiceBusReceivedMessage> rest = receiver.peekMessages(5);
            assertEquals(List.of("b", "c"), rest.stream().map(each -> each.getBody().toString()).collect(Collectors.toList()));
            assertEquals("b", receiver.peekMessage(2).getBody().toString());
            assertEquals(3, receiver.peekMessages(10, 1).stream().count());
            assertNull(receiver.peekMessage(99));
        }
    }

    @Test
    void aScheduledMessageComesWhenItIsDue() {
        String queue = Gateway.queue();
        try (var sender = Gateway.sender(queue); var receiver = Gateway.receiver(queue)) {
            OffsetDateTime due = OffsetDateTime.now().plusSeconds(3);
            long number = sender.scheduleMessage(new ServiceBusMessage("later"), due);
            assertEquals(ServiceBusMessageState.SCHEDULED, receiver.peekMessage(number).getState());
            var message = one(receiver);
            assertEquals("later", message.getBody().toString());
            assertFalse(OffsetDateTime.now().isBefore(due.minusNanos(1_000_000)));
            receiver.complete(message);
        }
    }

    @Test
    void scheduledMessagesAreCancelled() {
        String queue = Gateway.queue();
        try (var sender = Gateway.sender(queue); var receiver = Gateway.receiver(queue)) {
            OffsetDateTime due = OffsetDateTime.now().plusSeconds(5);
            List<Long> numbers = new java.util.ArrayList<>();
            sender.scheduleMessages(List.of(new ServiceBusMessage("a"), new ServiceBusMessage("b")), due)
                .forEach(numbers::add);
            sender.cancelScheduledMessages(numbers);
            assertNull(receiver.peekMessage());
        }
    }

    @Test
    void aMessageSentWithAScheduledTimeIsScheduled() {
        String queue = Gateway.queue();
        try (var sender = Gateway.sender(queue); var receiver = Gateway.receiver(queue)) {
            sender.sendMessage(new ServiceBusMessage("x").setScheduledEnqueueTime(OffsetDateTime.now().plusMinutes(1)));
            var message = receiver.peekMessage();
            assertEquals(ServiceBusMessageState.SCHEDULED, message.getState());
            assertNotNull(message.getScheduledEnqueueTime());
        }
    }

    @Test
    void aBatchIsFilledUpToItsLimit() {
        String queue = Gateway.queue();
        try (var sender = Gateway.sender(queue); var receiver = Gateway.receiver(queue)) {
            ServiceBusMessageBatch batch = sender.createMessageBatch();
            assertTrue(batch.getMaxSizeInBytes() > 100_000, "limit " + batch.getMaxSizeInBytes());
            int count = 0;
            while (batch.tryAddMessage(new ServiceBusMessage(BinaryData.fromBytes(new byte[10_000])))) {
                count++;
            }
            assertEquals(count, batch.getCount());
            sender.sendMessages(batch);
            int left = count;
            while (left > 0) {
                for (var each : receiver.receiveMessages(left, Gateway.WAIT)) {
                    receiver.complete(each);
                    left--;
                }
            }
            assertEmpty(receiver);
        }
    }

    @Test
    void aMessageAboveTheLimitIsRefused() {
        String queue = Gateway.queue();
        try (var sender = Gateway.sender(queue)) {
            var failure = assertThrows(ServiceBusException.class, () -> sender.sendMessage(
                new ServiceBusMessage(BinaryData.fromBytes(new byte[120 * 1024 * 1024]))));
            assertEquals(ServiceBusFailureReason.MESSAGE_SIZE_EXCEEDED, failure.getReason());
            sender.sendMessage(new ServiceBusMessage("small"));
        }
    }

    @Test
    void receiveAndDeleteTakesTheMessage() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a");
        try (var receiver = Gateway.builder().receiver().queueName(queue)
                .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient()) {
            assertEquals("a", one(receiver).getBody().toString());
            assertNull(receiver.peekMessage());
        }
    }

    @Test
    void aLockIsRenewed() throws InterruptedException {
        String queue = Gateway.queue(new CreateQueueOptions().setLockDuration(Duration.ofSeconds(5)));
        Gateway.send(queue, "a");
        try (var receiver = Gateway.receiver(queue)) {
            var message = one(receiver);
            var before = message.getLockedUntil();
            Thread.sleep(2000);
            assertTrue(receiver.renewMessageLock(message).isAfter(before));
            receiver.renewMessageLock(message, Duration.ofSeconds(12), failure -> { });
            Thread.sleep(8000);
            receiver.complete(message);
            assertNull(receiver.peekMessage(1));
        }
    }

    @Test
    void aLostLockIsReported() throws InterruptedException {
        String queue = Gateway.queue(new CreateQueueOptions().setLockDuration(Duration.ofSeconds(5)));
        Gateway.send(queue, "a");
        try (var receiver = Gateway.builder().receiver().queueName(queue).disableAutoComplete()
                .maxAutoLockRenewDuration(Duration.ZERO).buildClient()) {
            var message = one(receiver);
            Thread.sleep(6000);
            var failure = assertThrows(ServiceBusException.class, () -> receiver.complete(message));
            assertEquals(ServiceBusFailureReason.MESSAGE_LOCK_LOST, failure.getReason());
        }
    }

    @Test
    void aMissingEntityIsReported() {
        try (var receiver = Gateway.receiver("missing")) {
            var failure = assertThrows(ServiceBusException.class, receiver::peekMessage);
            assertEquals(ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, failure.getReason());
        }
        try (var sender = Gateway.sender("missing")) {
            var failure = assertThrows(ServiceBusException.class, () -> sender.sendMessage(new ServiceBusMessage("x")));
            assertEquals(ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, failure.getReason());
        }
    }

    @Test
    void aWrongKeyIsReported() {
        try (var sender = new com.azure.messaging.servicebus.ServiceBusClientBuilder()
                .connectionString("Endpoint=sb://fakeresource.servicebus.windows.net/;"
                    + "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=wrong")
                .customEndpointAddress("https://localhost:" + Gateway.TLS_PORT)
                .sender().queueName(Gateway.queue()).buildClient()) {
            var failure = assertThrows(ServiceBusException.class, () -> sender.sendMessage(new ServiceBusMessage("x")));
            assertEquals(ServiceBusFailureReason.UNAUTHORIZED, failure.getReason());
        }
    }

    @Test
    void aSignatureConnects() throws Exception {
        String queue = Gateway.queue();
        String resource = "sb://fakeresource.servicebus.windows.net/" + queue;
        long expiry = System.currentTimeMillis() / 1000 + 600;
        String encoded = java.net.URLEncoder.encode(resource, "UTF-8");
        var mac = javax.crypto.Mac.getInstance("HmacSHA256");
        mac.init(new javax.crypto.spec.SecretKeySpec("SAS_KEY_VALUE".getBytes(), "HmacSHA256"));
        String signature = java.net.URLEncoder.encode(
            java.util.Base64.getEncoder().encodeToString(mac.doFinal((encoded + "\n" + expiry).getBytes())), "UTF-8");
        try (var sender = new com.azure.messaging.servicebus.ServiceBusClientBuilder()
                .connectionString("Endpoint=sb://fakeresource.servicebus.windows.net/;SharedAccessSignature="
                    + "SharedAccessSignature sr=" + encoded + "&sig=" + signature + "&se=" + expiry
                    + "&skn=RootManageSharedAccessKey")
                .customEndpointAddress("https://localhost:" + Gateway.TLS_PORT)
                .sender().queueName(queue).buildClient()) {
            sender.sendMessage(new ServiceBusMessage("x"));
        }
    }

    @Test
    void aDuplicateIsDropped() {
        String queue = Gateway.queue(new CreateQueueOptions().setDuplicateDetectionRequired(true));
        Gateway.send(queue, "a");
        Gateway.send(queue, "a", "b");
        try (var receiver = Gateway.receiver(queue)) {
            assertEquals(2, receiver.peekMessages(10).stream().count());
        }
    }

    @Test
    void anExpiredMessageIsDeadLettered() throws InterruptedException {
        String queue = Gateway.queue(new CreateQueueOptions().setDeadLetteringOnMessageExpiration(true));
        try (var sender = Gateway.sender(queue);
             var dead = Gateway.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE)
                 .disableAutoComplete().buildClient()) {
            sender.sendMessage(new ServiceBusMessage("x").setTimeToLive(Duration.ofSeconds(1)));
            Thread.sleep(1500);
            assertEquals("TTLExpiredException", one(dead).getDeadLetterReason());
        }
    }
}
