package pairgate;

import com.azure.json.JsonProviders;
import com.azure.json.JsonReader;
import com.azure.json.JsonWriter;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusProcessorClient;
import com.azure.messaging.servicebus.ServiceBusSenderAsyncClient;
import java.io.IOException;
import java.io.StringWriter;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import reactor.core.publisher.Flux;

/**
 * A client of `benchmarks.service_bus` in a process of its own: azure-messaging-servicebus as its users
 * know it. Each message in flight is a send of its own; a processor with 32 calls completes one message
 * each. It sends and receives once before it is measured, since Java compiles what it runs often. It
 * prints one JSON object, as the other clients. Usage: Benchmark JOB
 */
final class Benchmark {
    private static final int CALLS = 32;
    private static final double TICK = 100; // clock ticks of a second, as on each Linux of today
    private static final double NANO = 1e9;

    private final Map<String, Object> job;
    private final String address;
    private final int window;
    private final ServiceBusClientBuilder client; // its senders and processors share a connection
    private final ServiceBusSenderAsyncClient sender;

    private Benchmark(Map<String, Object> job) {
        this.job = job;
        address = (String) job.get("address");
        window = ((Number) job.get("window")).intValue();
        // As against Azure's emulator, which means no TLS; the port is the custom endpoint's.
        client = new ServiceBusClientBuilder()
            .connectionString("Endpoint=sb://localhost;SharedAccessKeyName=" + job.get("user")
                + ";SharedAccessKey=" + job.get("password") + ";UseDevelopmentEmulator=true;")
            .customEndpointAddress("http://localhost:" + job.get("port"));
        sender = client.sender().queueName(address).buildAsyncClient();
    }

    public static void main(String[] arguments) throws Exception {
        Benchmark benchmark;
        try (JsonReader reader = JsonProviders.createReader(arguments[0])) {
            benchmark = new Benchmark(reader.readMap(JsonReader::readUntyped));
        }
        benchmark.run();
        Map<String, Object> found = benchmark.run();
        StringWriter text = new StringWriter();
        try (JsonWriter writer = JsonProviders.createWriter(text)) {
            writer.writeUntyped(found);
        }
        System.out.println(text);
        System.exit(0); // the SDK's threads live on
    }

    private Map<String, Object> run() throws Exception {
        Map<String, Object> sent = send();
        return Map.of("send", sent, "receive", receive((int) sent.get("messages")));
    }

    private Map<String, Object> send() throws IOException {
        String body = "x".repeat(1024);
        Watch watch = new Watch();
        long end = System.nanoTime() + (long) (NANO * ((Number) job.get("seconds")).doubleValue());
        // A slow machine may need all of the time for the connection: the least is a full window.
        Flux.<Integer, Integer>generate(() -> 0, (sent, sink) -> {
            if (sent < window || System.nanoTime() < end) {
                sink.next(sent);
            } else {
                sink.complete();
            }
            return sent + 1;
        }).flatMap(each -> {
            long began = System.nanoTime();
            return sender.sendMessage(new ServiceBusMessage(body)).doOnSuccess(done -> watch.add(began));
        }, window).blockLast();
        return watch.read();
    }

    private Map<String, Object> receive(int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        Watch watch = new Watch();
        try (ServiceBusProcessorClient processor = client.processor().queueName(address)
            .maxConcurrentCalls(Math.min(CALLS, window)).prefetchCount(window).disableAutoComplete()
            .processMessage(context -> {
                long began = System.nanoTime();
                context.complete();
                watch.add(began);
                left.countDown();
            })
            .processError(context -> {
                System.out.println(context.getException());
                System.exit(1);
            }).buildProcessorClient()) {
            processor.start();
            left.await();
            return watch.read();
        }
    }

    /** proc(5): utime and stime follow the name, which ends with a parenthesis. */
    private static double processorTime(int process) throws IOException {
        String text = Files.readString(Path.of("/proc", String.valueOf(process), "stat"));
        String[] fields = text.substring(text.lastIndexOf(')') + 2).split(" ");
        return (Integer.parseInt(fields[11]) + Integer.parseInt(fields[12])) / TICK;
    }

    private static double own() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime() / NANO;
    }

    private final class Watch {
        private final Map<String, Double> before = servers();
        private final ConcurrentLinkedQueue<Double> latencies = new ConcurrentLinkedQueue<>();
        private final double used = own();
        private final long began = System.nanoTime();

        private Watch() throws IOException {
        }

        void add(long since) {
            latencies.add((System.nanoTime() - since) / NANO);
        }

        Map<String, Object> read() throws IOException {
            double seconds = (System.nanoTime() - began) / NANO;
            double busy = (own() - used) / seconds;
            Map<String, Double> costs = servers();
            double[] sorted = latencies.stream().mapToDouble(Double::doubleValue).sorted().toArray();
            costs.replaceAll((name, taken) -> (taken - before.get(name)) / sorted.length);
            return Map.of("messages", sorted.length, "seconds", seconds, "busy", busy, "servers", costs,
                "p50", sorted[sorted.length / 2], "p99", sorted[sorted.length * 99 / 100]);
        }

        @SuppressWarnings("unchecked")
        private Map<String, Double> servers() throws IOException {
            Map<String, Double> found = new LinkedHashMap<>();
            for (Map.Entry<String, Object> each : ((Map<String, Object>) job.get("servers")).entrySet()) {
                found.put(each.getKey(), processorTime(((Number) each.getValue()).intValue()));
            }
            return found;
        }
    }
}
