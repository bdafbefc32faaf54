package pairgate;

import java.io.File;
import java.util.Arrays;
import org.apache.activemq.artemis.api.core.QueueConfiguration;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressFullMessagePolicy;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;

/**
 * A broker with durable anycast queues: PORT FOLDER POLICY QUEUE...; POLICY says what happens above
 * a megabyte in one address (PAGE, BLOCK, FAIL or DROP).
 */
public final class Broker {
  private static final long LARGEST_ADDRESS = 1_000_000;

  public static void main(String[] arguments) throws Exception {
    File folder = new File(arguments[1]);
    ConfigurationImpl configuration = new ConfigurationImpl();
    configuration.setBrokerInstance(folder);
    configuration.setSecurityEnabled(false);
    configuration.setJournalType(JournalType.NIO);
    configuration.addAcceptorConfiguration(
        "amqp", "tcp://127.0.0.1:" + arguments[0] + "?protocols=AMQP");
    configuration.addAddressSetting(
        "#",
        new AddressSettings()
            .setAutoCreateAddresses(false)
            .setAutoCreateQueues(false)
            .setMaxDeliveryAttempts(-1)
            .setMaxSizeBytes(LARGEST_ADDRESS)
            .setAddressFullMessagePolicy(AddressFullMessagePolicy.valueOf(arguments[2])));
    for (String name : Arrays.copyOfRange(arguments, 3, arguments.length)) {
      configuration.addQueueConfiguration(
          QueueConfiguration.of(name).setRoutingType(RoutingType.ANYCAST).setDurable(true));
    }
    EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
    broker.setConfiguration(configuration);
    broker.start();
    System.out.println("ready");
    Thread.currentThread().join();
  }
}
