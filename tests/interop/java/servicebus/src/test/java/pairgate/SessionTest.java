package pairgate;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** Sessions of the synchronous clients. */
class SessionTest {
    private static void send(String queue, String session, String... bodies) {
        try (var sender = Gateway.sender(queue)) {
            for (String body : bodies) {
                sender.sendMessage(new ServiceBusMessage(body).setSessionId(session));
            }
        }
    }

    private static ServiceBusSessionReceiverClient sessions(String queue) {
        return Gateway.builder().sessionReceiver().queueName(queue).disableAutoComplete().buildClient();
    }

    private static List<String> completed(ServiceBusReceiverClient receiver, int count) {
        List<String> bodies = new java.util.ArrayList<>();
        while (bodies.size() < count) {
            for (var each : receiver.receiveMessages(count - bodies.size(), Gateway.WAIT)) {
                receiver.complete(each);
                bodies.add(each.getSessionId() + ":" + each.getBody());
            }
        }
        return bodies;
    }

    @Test
    void aNamedSessionIsReceivedInOrder() {
        String queue = Gateway.sessionQueue();
        send(queue, "one", "a", "b");
        send(queue, "two", "c");
        try (var client = sessions(queue); var receiver = client.acceptSession("one")) {
            assertEquals("one", receiver.getSessionId());
            assertEquals(List.of("one:a", "one:b"), completed(receiver, 2));
        }
    }

    @Test
    void theNextSessionsAreAccepted() {
        String queue = Gateway.sessionQueue();
        send(queue, "one", "a");
        send(queue, "two", "b");
        Set<String> found = new HashSet<>();
        try (var client = sessions(queue)) {
            for (int each = 0; each < 2; each++) {
                try (var receiver = client.acceptNextSession()) {
                    found.addAll(completed(receiver, 1));
                }
            }
        }
        assertEquals(Set.of("one:a", "two:b"), found);
    }

    @Test
    void theStateIsKept() {
        String queue = Gateway.sessionQueue();
        try (var client = sessions(queue); var receiver = client.acceptSession("one")) {
            assertNull(receiver.getSessionState());
            receiver.setSessionState(new byte[] {1, 2});
            assertArrayEquals(new byte[] {1, 2}, receiver.getSessionState());
        }
        // Another client: this one would use its old link again, which it closes in the background.
        try (var client = sessions(queue); var receiver = client.acceptSession("one")) {
            assertArrayEquals(new byte[] {1, 2}, receiver.getSessionState());
            receiver.setSessionState(null);
            assertNull(receiver.getSessionState());
        }
    }

    @Test
    void theLockIsRenewed() throws InterruptedException {
        String queue = Gateway.queue(new CreateQueueOptions().setSessionRequired(true).setLockDuration(Duration.ofSeconds(5)));
        send(queue, "one", "a");
        try (var client = sessions(queue); var receiver = client.acceptSession("one")) {
            OffsetDateTime first = receiver.renewSessionLock();
            assertTrue(first.isAfter(OffsetDateTime.now()));
            Thread.sleep(1100);
            assertTrue(receiver.renewSessionLock().isAfter(first));
            receiver.renewSessionLock(Duration.ofSeconds(12), failure -> { });
            Thread.sleep(7000);
            assertEquals(List.of("one:a"), completed(receiver, 1));
        }
    }

    @Test
    void aLockedSessionIsRefused() {
        String queue = Gateway.sessionQueue();
        send(queue, "one", "a");
        try (var client = sessions(queue); var receiver = client.acceptSession("one"); var other = sessions(queue)) {
            var failure = assertThrows(AmqpException.class, () -> other.acceptSession("one"));
            assertEquals(AmqpErrorCondition.SESSION_CANNOT_BE_LOCKED, failure.getErrorCondition());
            assertEquals(List.of("one:a"), completed(receiver, 1));
        }
    }

    @Test
    void messagesOfASessionArePeekedAndDeferred() {
        String queue = Gateway.sessionQueue();
        send(queue, "one", "a", "b");
        send(queue, "two", "c");
        try (var client = sessions(queue); var receiver = client.acceptSession("one")) {
            assertEquals(List.of("a", "b"), receiver.peekMessages(5).stream()
                .map(each -> each.getBody().toString()).collect(Collectors.toList()));
            var message = receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow();
            receiver.defer(message);
            var deferred = receiver.receiveDeferredMessage(message.getSequenceNumber());
            receiver.complete(deferred);
            assertEquals(List.of("one:b"), completed(receiver, 1));
        }
    }

    @Test
    void aMessageWithoutASessionIsRefused() {
        String queue = Gateway.sessionQueue();
        try (var sender = Gateway.sender(queue)) {
            assertThrows(RuntimeException.class, () -> sender.sendMessage(new ServiceBusMessage("x")));
        }
    }

    @Test
    void aPlainReceiverOfASessionQueueIsRefused() {
        String queue = Gateway.sessionQueue();
        send(queue, "one", "a");
        try (var receiver = Gateway.receiver(queue)) {
            assertThrows(RuntimeException.class, () -> receiver.receiveMessages(1, Duration.ofSeconds(3)).stream().count());
        }
    }

    @Test
    void scheduledMessagesReachTheirSession() {
        String queue = Gateway.sessionQueue();
        try (var sender = Gateway.sender(queue); var client = sessions(queue)) {
            sender.scheduleMessage(new ServiceBusMessage("a").setSessionId("one"), OffsetDateTime.now().plusSeconds(1));
            try (var receiver = client.acceptSession("one")) {
                assertEquals(List.of("one:a"), completed(receiver, 1));
            }
        }
    }

    @Test
    void waitingForAnySessionEnds() {
        String queue = Gateway.sessionQueue();
        try (var client = Gateway.builder()
                .retryOptions(new com.azure.core.amqp.AmqpRetryOptions().setTryTimeout(Duration.ofSeconds(3)).setMaxRetries(0))
                .sessionReceiver().queueName(queue).buildClient()) {
            assertThrows(RuntimeException.class, client::acceptNextSession);
        }
    }
}
