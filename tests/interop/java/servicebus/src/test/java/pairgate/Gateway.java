package pairgate;

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;

/** How the tests reach the gateway under test; the runner sets the environment. */
final class Gateway {
    static final String TLS_PORT = System.getenv("INTEROP_TLS_PORT");
    static final String PLAIN_PORT = System.getenv("INTEROP_PLAIN_PORT");
    static final Duration WAIT = Duration.ofSeconds(10);
    static final String KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;";

    private Gateway() {
    }

    /** A builder as a program of Azure has it, with the gateway's address beside it. */
    static ServiceBusClientBuilder builder() {
        return new ServiceBusClientBuilder()
            .connectionString("Endpoint=sb://fakeresource.servicebus.windows.net/;" + KEY)
            .customEndpointAddress("https://localhost:" + TLS_PORT)
            .retryOptions(new AmqpRetryOptions().setTryTimeout(Duration.ofSeconds(20)).setMaxRetries(3));
    }

    /** As against Azure's emulator, which means no TLS; the port is the custom endpoint's. */
    static ServiceBusClientBuilder plain() {
        return new ServiceBusClientBuilder()
            .connectionString("Endpoint=sb://localhost;" + KEY + "UseDevelopmentEmulator=true;")
            .customEndpointAddress("http://localhost:" + PLAIN_PORT);
    }

    /** This client dials port 443 of the host, whatever the string says: a policy leads it here. */
    static ServiceBusAdministrationClient admin() {
        return new ServiceBusAdministrationClientBuilder()
            .connectionString("Endpoint=sb://localhost;" + KEY)
            .addPolicy((context, next) -> {
                String path = context.getHttpRequest().getUrl().getFile();
                context.getHttpRequest().setUrl("https://localhost:" + TLS_PORT + path);
                return next.process();
            })
            .buildClient();
    }

    static String name(String kind) {
        return kind + "-" + UUID.randomUUID().toString().substring(0, 8);
    }

    static String queue() {
        return queue(new CreateQueueOptions());
    }

    static String queue(CreateQueueOptions options) {
        String name = name("queue");
        admin().createQueue(name, options);
        return name;
    }

    static String sessionQueue() {
        return queue(new CreateQueueOptions().setSessionRequired(true));
    }

    static String topic(String... subscriptions) {
        String name = name("topic");
        admin().createTopic(name);
        for (String each : subscriptions) {
            admin().createSubscription(name, each);
        }
        return name;
    }

    static ServiceBusSenderClient sender(String queue) {
        return builder().sender().queueName(queue).buildClient();
    }

    static ServiceBusReceiverClient receiver(String queue) {
        return builder().receiver().queueName(queue).disableAutoComplete().buildClient();
    }

    static void send(String queue, String... bodies) {
        try (ServiceBusSenderClient sender = sender(queue)) {
            List<ServiceBusMessage> messages = new ArrayList<>();
            Arrays.stream(bodies).forEach(body -> messages.add(new ServiceBusMessage(body).setMessageId(body)));
            sender.sendMessages(messages);
        }
    }
}
