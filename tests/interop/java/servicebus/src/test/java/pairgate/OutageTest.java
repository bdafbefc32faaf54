package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusSenderAsyncClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** The runner kills the primary, starts it again, freezes and continues it, while these clients work. */
@EnabledIfEnvironmentVariable(named = "INTEROP_OUTAGE_SECONDS", matches = ".+")
class OutageTest {
    private static final long SECONDS = Long.parseLong(System.getenv().getOrDefault("INTEROP_OUTAGE_SECONDS", "0"));
    private static final Duration HOME = Duration.ofSeconds(90);
    private static final Queue<String> ERRORS = new ConcurrentLinkedQueue<>();
    private static final Set<String> SENT = ConcurrentHashMap.newKeySet();
    private static final Set<String> TO_PROCESS = ConcurrentHashMap.newKeySet();
    private static final Set<String> TO_PROCESS_IN_SESSIONS = ConcurrentHashMap.newKeySet();
    private static final Set<String> PROCESSED = ConcurrentHashMap.newKeySet();
    private static final Set<String> PROCESSED_IN_SESSIONS = ConcurrentHashMap.newKeySet();
    private static final Queue<String> PROCESSOR_ERRORS = new ConcurrentLinkedQueue<>();
    // When the primary was back, and when the processor had the first message after that.
    private static final AtomicLong BACK = new AtomicLong();
    private static final AtomicLong NEXT = new AtomicLong();

    @BeforeAll
    static void sendAndProcess() throws InterruptedException, IOException {
        try (var processor = Gateway.plain().processor().queueName("processed")
                 .processMessage(context -> process(context.getMessage().getBody().toString()))
                 .processError(context -> PROCESSOR_ERRORS.add(context.getException().toString()))
                 .buildProcessorClient();
             var sessions = Gateway.plain().sessionProcessor().queueName("sessions").maxConcurrentSessions(2)
                 .processMessage(context -> PROCESSED_IN_SESSIONS.add(context.getMessage().getBody().toString()))
                 .processError(context -> { }).buildProcessorClient()) {
            processor.start();
            sessions.start();
            Files.createFile(Path.of(System.getenv("INTEROP_BEGUN")));
            send();
            long limit = System.nanoTime() + HOME.toNanos();
            while (System.nanoTime() < limit && !(PROCESSED.containsAll(TO_PROCESS)
                    && PROCESSED_IN_SESSIONS.containsAll(TO_PROCESS_IN_SESSIONS))) {
                Thread.sleep(200);
            }
        }
    }

    private static void send() throws InterruptedException {
        long end = System.nanoTime() + Duration.ofSeconds(SECONDS).toNanos();
        try (var sender = Gateway.plain().sender().queueName("orders").buildClient();
             ServiceBusSenderAsyncClient other = Gateway.plain().sender().queueName("orders").buildAsyncClient();
             var processed = Gateway.plain().sender().queueName("processed").buildClient();
             var sessions = Gateway.plain().sender().queueName("sessions").buildClient()) {
            Path back = Path.of(System.getenv("INTEROP_BEGUN")).resolveSibling("back");
            for (int each = 0; System.nanoTime() < end; each++) {
                if (BACK.get() == 0 && Files.exists(back)) {
                    BACK.set(System.nanoTime());
                }
                String async = "a" + each;
                other.sendMessage(message(async))
                    .subscribe(done -> { }, failure -> ERRORS.add(failure.toString()), () -> SENT.add(async));
                accepted(sender, message("s" + each), SENT);
                accepted(processed, message("p" + each), TO_PROCESS);
                accepted(sessions, message("n" + each).setSessionId("session-" + each % 4), TO_PROCESS_IN_SESSIONS);
                Thread.sleep(20);
            }
            Thread.sleep(3000);
        }
    }

    private static void process(String body) {
        PROCESSED.add(body);
        if (BACK.get() != 0) {
            NEXT.compareAndSet(0, System.nanoTime());
        }
    }

    private static ServiceBusMessage message(String body) {
        return new ServiceBusMessage(body).setMessageId(body);
    }

    private static void accepted(ServiceBusSenderClient sender, ServiceBusMessage message, Set<String> bodies) {
        try {
            sender.sendMessage(message);
            bodies.add(message.getBody().toString());
        } catch (RuntimeException failure) {
            ERRORS.add(failure.toString());
        }
    }

    private static Set<String> without(Set<String> all, Set<String> found) {
        Set<String> missing = new TreeSet<>(all);
        missing.removeAll(found);
        return missing;
    }

    @Test
    void producersGetNoError() {
        assertTrue(SENT.size() > SECONDS);
        assertEquals(List.of(), List.copyOf(ERRORS));
    }

    @Test
    void nothingIsLost() {
        Set<String> missing = new TreeSet<>(SENT);
        long limit = System.nanoTime() + HOME.toNanos();
        try (var receiver = Gateway.plain().receiver().queueName("orders").disableAutoComplete().buildClient()) {
            while (!missing.isEmpty() && System.nanoTime() < limit) {
                for (var message : receiver.receiveMessages(100, Duration.ofSeconds(2))) {
                    missing.remove(message.getBody().toString());
                    receiver.complete(message);
                }
            }
        }
        assertEquals(Set.of(), missing);
    }

    @Test
    void aProcessorGetsEverythingThatWasAccepted() {
        assertTrue(TO_PROCESS.size() > SECONDS);
        assertEquals(Set.of(), without(TO_PROCESS, PROCESSED));
    }

    @Test
    void aProcessorHearsNoErrorOfAKilledPrimaryAndGoesOnAfterIt() {
        Duration waited = Duration.ofNanos(NEXT.get() - BACK.get());
        System.out.println("seconds from the return to the next message: " + waited.toMillis() / 1000.0);
        assertEquals(List.of(), List.copyOf(PROCESSOR_ERRORS));
        assertTrue(BACK.get() != 0 && NEXT.get() != 0 && waited.toSeconds() < 10);
    }

    @Test
    void aSessionProcessorGetsEverythingThatWasAccepted() {
        assertTrue(TO_PROCESS_IN_SESSIONS.size() > SECONDS);
        assertEquals(Set.of(), without(TO_PROCESS_IN_SESSIONS, PROCESSED_IN_SESSIONS));
    }
}
