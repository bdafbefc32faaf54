package pairgate;

import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import java.util.UUID;

/** The namespace by the name that it has in Azure: the runner leads that name to the gateway. */
final class Azure {
    static final String CONNECTION = "Endpoint=sb://fakeresource.servicebus.windows.net/;"
        + "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE";

    private Azure() {
    }

    static ServiceBusAdministrationClient admin() {
        return new ServiceBusAdministrationClientBuilder().connectionString(CONNECTION).buildClient();
    }

    static String name(String kind) {
        return kind + "-" + UUID.randomUUID().toString().substring(0, 8);
    }

    static String queue(CreateQueueOptions options) {
        String name = name("queue");
        admin().createQueue(name, options);
        return name;
    }

    static String topic(String subscription) {
        String name = name("topic");
        admin().createTopic(name);
        admin().createSubscription(name, subscription);
        return name;
    }
}
