package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusSenderAsyncClient;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** The runner kills the primary, starts it again, freezes and continues it, while these producers send. */
@EnabledIfEnvironmentVariable(named = "INTEROP_OUTAGE_SECONDS", matches = ".+")
class OutageTest {
    private static final long SECONDS = Long.parseLong(System.getenv().getOrDefault("INTEROP_OUTAGE_SECONDS", "0"));

    @Test
    void producersGetNoErrorAndNothingIsLost() throws InterruptedException {
        Set<String> accepted = ConcurrentHashMap.newKeySet();
        List<String> errors = new ArrayList<>();
        long end = System.nanoTime() + Duration.ofSeconds(SECONDS).toNanos();
        try (var sender = Gateway.plain().sender().queueName("orders").buildClient();
             ServiceBusSenderAsyncClient other = Gateway.plain().sender().queueName("orders").buildAsyncClient()) {
            for (int each = 0; System.nanoTime() < end; each++) {
                String sync = "s" + each;
                String async = "a" + each;
                other.sendMessage(new ServiceBusMessage(async).setMessageId(async))
                    .subscribe(done -> { }, failure -> errors.add(failure.toString()), () -> accepted.add(async));
                try {
                    sender.sendMessage(new ServiceBusMessage(sync).setMessageId(sync));
                    accepted.add(sync);
                } catch (RuntimeException failure) {
                    errors.add(failure.toString());
                }
                Thread.sleep(20);
            }
            Thread.sleep(3000);
        }
        Set<String> missing = new TreeSet<>(accepted);
        long limit = System.nanoTime() + Duration.ofSeconds(90).toNanos();
        try (var receiver = Gateway.plain().receiver().queueName("orders").disableAutoComplete().buildClient()) {
            while (!missing.isEmpty() && System.nanoTime() < limit) {
                for (var message : receiver.receiveMessages(100, Duration.ofSeconds(2))) {
                    missing.remove(message.getBody().toString());
                    receiver.complete(message);
                }
            }
        }
        System.out.println("accepted " + accepted.size());
        assertEquals(List.of(), errors);
        assertEquals(Set.of(), missing);
    }
}
