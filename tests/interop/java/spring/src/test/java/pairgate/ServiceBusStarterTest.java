package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.spring.cloud.service.servicebus.consumer.ServiceBusErrorHandler;
import com.azure.spring.cloud.service.servicebus.properties.ServiceBusEntityType;
import com.azure.spring.messaging.ConsumerIdentifier;
import com.azure.spring.messaging.PropertiesSupplier;
import com.azure.spring.messaging.implementation.annotation.EnableAzureMessaging;
import com.azure.spring.messaging.servicebus.core.ServiceBusTemplate;
import com.azure.spring.messaging.servicebus.core.properties.ConsumerProperties;
import com.azure.spring.messaging.servicebus.implementation.core.annotation.ServiceBusListener;
import com.azure.spring.messaging.servicebus.support.ServiceBusMessageHeaders;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.support.MessageBuilder;

/** The modules of `spring-cloud-azure-starter-servicebus`: clients by properties, template, listeners. */
class ServiceBusStarterTest {
    private static String queue;
    private static String topic;
    private static String failing;
    private static ConfigurableApplicationContext application;

    @EnableAutoConfiguration
    @EnableAzureMessaging
    static class Application {
        final BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        final BlockingQueue<String> read = new LinkedBlockingQueue<>();
        final BlockingQueue<String> tried = new LinkedBlockingQueue<>();
        final AtomicInteger failures = new AtomicInteger();

        @Bean
        ServiceBusErrorHandler errors() {
            return context -> { };
        }

        /** Of the template alone, which receives replies in sessions. */
        @Bean
        PropertiesSupplier<ConsumerIdentifier, ConsumerProperties> consumers() {
            return consumer -> {
                ConsumerProperties properties = new ConsumerProperties();
                properties.setSessionEnabled(true);
                return properties;
            };
        }

        @ServiceBusListener(destination = "${test.queue}")
        void hear(String body) {
            heard.add(body);
        }

        @ServiceBusListener(destination = "${test.topic}", group = "mine")
        void read(String body) {
            read.add(body);
        }

        @ServiceBusListener(destination = "${test.failing}")
        void fail(String body) {
            tried.add(body);
            if (failures.getAndIncrement() == 0) {
                throw new IllegalStateException("the first time");
            }
        }
    }

    @BeforeAll
    static void start() {
        queue = Azure.queue(new CreateQueueOptions());
        failing = Azure.queue(new CreateQueueOptions());
        topic = Azure.topic("mine");
        application = started();
    }

    private static ConfigurableApplicationContext started(String... more) {
        return new SpringApplicationBuilder(Application.class).web(WebApplicationType.NONE)
            .properties("spring.jms.servicebus.enabled=false",
                "spring.cloud.azure.servicebus.connection-string=" + Azure.CONNECTION,
                "spring.cloud.azure.servicebus.entity-type=queue",
                "logging.level.root=off", "spring.main.banner-mode=off",
                "test.queue=" + queue, "test.topic=" + topic, "test.failing=" + failing)
            .properties(more).run();
    }

    @AfterAll
    static void end() {
        application.close();
    }

    private static void send(String destination, String body) {
        application.getBean(ServiceBusTemplate.class)
            .sendAsync(destination, MessageBuilder.withPayload(body).build()).block(Duration.ofSeconds(20));
    }

    private static Application listeners() {
        return application.getBean(Application.class);
    }

    @Test
    void aListenerGetsWhatTheTemplateSends() throws InterruptedException {
        for (String body : List.of("a", "b", "c")) {
            send(queue, body);
        }
        for (int each = 0; each < 3; each++) {
            assertEquals(1, listeners().heard.poll(20, TimeUnit.SECONDS).length());
        }
    }

    @Test
    void aListenerReadsASubscription() throws InterruptedException {
        send(topic, "news");
        assertEquals("news", listeners().read.poll(20, TimeUnit.SECONDS));
    }

    @Test
    void aListenerThatFailsGetsTheMessageAgain() throws InterruptedException {
        send(failing, "x");
        assertEquals("x", listeners().tried.poll(20, TimeUnit.SECONDS));
        assertEquals("x", listeners().tried.poll(20, TimeUnit.SECONDS));
    }

    @Test
    void aRequestGetsItsReplyInASession() {
        String requests = Azure.queue(new CreateQueueOptions());
        String replies = Azure.queue(new CreateQueueOptions().setSessionRequired(true));
        try (var answering = new ServiceBusClientBuilder().connectionString(Azure.CONNECTION).processor()
                .queueName(requests).processMessage(context -> {
                    var request = context.getMessage();
                    try (var sender = new ServiceBusClientBuilder().connectionString(Azure.CONNECTION).sender()
                            .queueName(request.getReplyTo()).buildClient()) {
                        sender.sendMessage(new ServiceBusMessage("answer").setSessionId(request.getReplyToSessionId()));
                    }
                }).processError(context -> { }).buildProcessorClient()) {
            answering.start();
            var request = MessageBuilder.withPayload("question").setReplyChannelName(replies).build();
            var answer = application.getBean(ServiceBusTemplate.class)
                .sendAndReceive(requests, ServiceBusEntityType.QUEUE, request, Duration.ofSeconds(30));
            assertEquals("answer", answer.getBody().toString());
        }
    }

    @Test
    void theHeadersOfAMessageArrive() {
        String other = Azure.queue(new CreateQueueOptions());
        application.getBean(ServiceBusTemplate.class).sendAsync(other, MessageBuilder.withPayload("x")
            .setHeader(ServiceBusMessageHeaders.MESSAGE_ID, "seven").setHeader(ServiceBusMessageHeaders.SUBJECT, "orders")
            .setHeader("mine", "yes").build()).block(Duration.ofSeconds(20));
        try (var receiver = new ServiceBusClientBuilder().connectionString(Azure.CONNECTION).receiver()
                .queueName(other).buildClient()) {
            var message = receiver.receiveMessages(1, Duration.ofSeconds(20)).stream().findFirst().orElseThrow();
            assertEquals("seven", message.getMessageId());
            assertEquals("orders", message.getSubject());
            assertEquals("yes", message.getApplicationProperties().get("mine"));
            receiver.complete(message);
        }
    }

    @Test
    void clientsByPropertiesSendAndReceive() {
        String other = Azure.queue(new CreateQueueOptions());
        try (var context = started("spring.cloud.azure.servicebus.entity-name=" + other)) {
            context.getBean(ServiceBusSenderClient.class).sendMessage(new ServiceBusMessage("x"));
            var receiver = context.getBean(ServiceBusReceiverClient.class);
            var message = receiver.receiveMessages(1, Duration.ofSeconds(20)).stream().findFirst().orElseThrow();
            assertEquals("x", message.getBody().toString());
            receiver.complete(message);
        }
    }
}
