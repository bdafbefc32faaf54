package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
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
import org.springframework.jms.annotation.EnableJms;
import org.springframework.jms.annotation.JmsListener;
import org.springframework.jms.core.JmsTemplate;

/** The starter `spring-cloud-azure-starter-servicebus-jms`, with the properties of its documentation. */
class JmsStarterTest {
    private static String queue;
    private static String failing;
    private static String topic;
    private static ConfigurableApplicationContext application;

    @EnableAutoConfiguration
    @EnableJms
    static class Application {
        final BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        final BlockingQueue<String> tried = new LinkedBlockingQueue<>();
        final AtomicInteger failures = new AtomicInteger();
        final BlockingQueue<String> read = new LinkedBlockingQueue<>();

        @JmsListener(destination = "${test.queue}", containerFactory = "jmsListenerContainerFactory")
        void hear(String body) {
            heard.add(body);
        }

        @JmsListener(destination = "${test.failing}", containerFactory = "jmsListenerContainerFactory")
        void fail(String body) {
            tried.add(body);
            if (failures.getAndIncrement() == 0) {
                throw new IllegalStateException("the first time");
            }
        }

        @JmsListener(destination = "${test.topic}/Subscriptions/mine", containerFactory = "jmsListenerContainerFactory")
        void read(String body) {
            read.add(body);
        }
    }

    @BeforeAll
    static void start() {
        queue = Azure.queue(new CreateQueueOptions());
        failing = Azure.queue(new CreateQueueOptions());
        topic = Azure.topic("mine");
        application = new SpringApplicationBuilder(Application.class).web(WebApplicationType.NONE)
            .properties("spring.jms.servicebus.connection-string=" + Azure.CONNECTION,
                "spring.jms.servicebus.pricing-tier=standard", "spring.jms.servicebus.idle-timeout=2m",
                "logging.level.root=off", "spring.main.banner-mode=off",
                "test.queue=" + queue, "test.failing=" + failing, "test.topic=" + topic)
            .run();
    }

    @AfterAll
    static void end() {
        application.close();
    }

    private static JmsTemplate template() {
        return application.getBean(JmsTemplate.class);
    }

    private static Application listeners() {
        return application.getBean(Application.class);
    }

    @Test
    void aListenerGetsWhatTheTemplateSends() throws InterruptedException {
        for (String body : List.of("a", "b", "c")) {
            template().convertAndSend(queue, body);
        }
        for (String body : List.of("a", "b", "c")) {
            assertEquals(body, listeners().heard.poll(20, TimeUnit.SECONDS));
        }
    }

    @Test
    void aListenerThatFailsGetsTheMessageAgain() throws InterruptedException {
        template().convertAndSend(failing, "x");
        assertEquals("x", listeners().tried.poll(20, TimeUnit.SECONDS));
        assertEquals("x", listeners().tried.poll(20, TimeUnit.SECONDS));
    }

    @Test
    void aListenerReadsASubscription() throws InterruptedException {
        template().convertAndSend(topic, "news");
        assertEquals("news", listeners().read.poll(20, TimeUnit.SECONDS));
    }

    @Test
    void theTemplateReceives() {
        String other = Azure.queue(new CreateQueueOptions());
        template().setReceiveTimeout(10_000);
        template().convertAndSend(other, "polled");
        assertEquals("polled", template().receiveAndConvert(other));
    }
}
