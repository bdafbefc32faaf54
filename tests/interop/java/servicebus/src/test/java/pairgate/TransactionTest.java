package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.OffsetDateTime;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Transactions, in one entity and across entities. */
class TransactionTest {
    @Test
    void aCommittedSendIsReceived() {
        String queue = Gateway.queue();
        try (var sender = Gateway.sender(queue); var receiver = Gateway.receiver(queue)) {
            ServiceBusTransactionContext transaction = sender.createTransaction();
            sender.sendMessage(new ServiceBusMessage("a"), transaction);
            sender.sendMessages(List.of(new ServiceBusMessage("b"), new ServiceBusMessage("c")), transaction);
            assertNull(receiver.peekMessage());
            sender.commitTransaction(transaction);
            assertEquals(3, receiver.peekMessages(5, 1).stream().count());
        }
    }

    @Test
    void aSendThatIsRolledBackIsGone() {
        String queue = Gateway.queue();
        try (var sender = Gateway.sender(queue); var receiver = Gateway.receiver(queue)) {
            ServiceBusTransactionContext transaction = sender.createTransaction();
            sender.sendMessage(new ServiceBusMessage("a"), transaction);
            sender.rollbackTransaction(transaction);
            assertNull(receiver.peekMessage());
        }
    }

    @Test
    void completionsCommitAndRollBack() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a", "b");
        try (var receiver = Gateway.receiver(queue)) {
            var messages = receiver.receiveMessages(1, Gateway.WAIT).stream().toList();
            ServiceBusTransactionContext first = receiver.createTransaction();
            receiver.complete(messages.get(0), new CompleteOptions().setTransactionContext(first));
            receiver.rollbackTransaction(first);
            assertEquals("a", receiver.peekMessage().getBody().toString());
            ServiceBusTransactionContext second = receiver.createTransaction();
            var next = receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow();
            receiver.complete(next, new CompleteOptions().setTransactionContext(second));
            receiver.commitTransaction(second);
            assertEquals(1, receiver.peekMessages(5, 0).stream().count());
        }
    }

    @Test
    void aDeadLetterAndADeferralCommit() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a", "b");
        try (var receiver = Gateway.receiver(queue);
             var dead = Gateway.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE)
                 .disableAutoComplete().buildClient()) {
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            var a = receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow();
            var b = receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow();
            receiver.deadLetter(a, new DeadLetterOptions().setDeadLetterReason("bad").setTransactionContext(transaction));
            receiver.defer(b, new com.azure.messaging.servicebus.models.DeferOptions().setTransactionContext(transaction));
            assertNull(dead.peekMessage());
            receiver.commitTransaction(transaction);
            assertEquals("bad", dead.peekMessage(0).getDeadLetterReason());
            receiver.complete(receiver.receiveDeferredMessage(b.getSequenceNumber()));
        }
    }

    @Test
    void schedulesCommitAndRollBack() {
        String queue = Gateway.queue();
        try (var sender = Gateway.sender(queue); var receiver = Gateway.receiver(queue)) {
            OffsetDateTime due = OffsetDateTime.now().plusMinutes(1);
            ServiceBusTransactionContext first = sender.createTransaction();
            sender.scheduleMessage(new ServiceBusMessage("a"), due, first);
            sender.rollbackTransaction(first);
            assertNull(receiver.peekMessage());
            ServiceBusTransactionContext second = sender.createTransaction();
            sender.scheduleMessage(new ServiceBusMessage("b"), due, second);
            sender.commitTransaction(second);
            assertEquals("b", receiver.peekMessage().getBody().toString());
        }
    }

    @Test
    void aMessageIsMovedAcrossEntities() {
        String from = Gateway.queue();
        String to = Gateway.queue();
        Gateway.send(from, "a");
        var builder = Gateway.builder().enableCrossEntityTransactions();
        try (var receiver = builder.receiver().queueName(from).disableAutoComplete().buildClient();
             var sender = builder.sender().queueName(to).buildClient();
             var target = Gateway.receiver(to)) {
            var message = receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow();
            ServiceBusTransactionContext transaction = sender.createTransaction();
            sender.sendMessage(new ServiceBusMessage("moved"), transaction);
            receiver.complete(message, new CompleteOptions().setTransactionContext(transaction));
            assertNull(target.peekMessage());
            sender.commitTransaction(transaction);
            assertEquals("moved", target.peekMessage(0).getBody().toString());
            assertNull(receiver.peekMessage(0));
        }
    }

    @Test
    void aMoveIsRolledBack() {
        String from = Gateway.queue();
        String to = Gateway.queue();
        Gateway.send(from, "a");
        var builder = Gateway.builder().enableCrossEntityTransactions();
        try (var receiver = builder.receiver().queueName(from).disableAutoComplete().buildClient();
             var sender = builder.sender().queueName(to).buildClient();
             var target = Gateway.receiver(to)) {
            var message = receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow();
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            sender.sendMessage(new ServiceBusMessage("moved"), transaction);
            receiver.complete(message, new CompleteOptions().setTransactionContext(transaction));
            receiver.rollbackTransaction(transaction);
            assertNull(target.peekMessage());
            assertEquals("a", receiver.peekMessage().getBody().toString());
        }
    }

    @Test
    void aSessionsMessageCommits() {
        String queue = Gateway.sessionQueue();
        try (var sender = Gateway.sender(queue)) {
            sender.sendMessage(new ServiceBusMessage("a").setSessionId("one"));
        }
        try (var client = Gateway.builder().sessionReceiver().queueName(queue).disableAutoComplete().buildClient();
             var receiver = client.acceptSession("one")) {
            var message = receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow();
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(message, new CompleteOptions().setTransactionContext(transaction));
            receiver.commitTransaction(transaction);
            assertNull(receiver.peekMessage(0));
        }
    }
}
