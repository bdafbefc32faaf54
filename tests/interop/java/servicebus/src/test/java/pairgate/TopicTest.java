package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.azure.core.exception.AzureException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** Topics, subscriptions and the rule manager. */
class TopicTest {
    private static ServiceBusRuleManagerClient manager(String topic, String subscription) {
        return Gateway.builder().ruleManager().topicName(topic).subscriptionName(subscription).buildClient();
    }

    private static void publish(String topic, ServiceBusMessage... messages) {
        try (var sender = Gateway.builder().sender().topicName(topic).buildClient()) {
            sender.sendMessages(java.util.List.of(messages));
        }
    }

    @Test
    void eachSubscriptionGetsItsCopy() {
        String topic = Gateway.topic("one", "two");
        publish(topic, new ServiceBusMessage("a"));
        for (String each : new String[] {"one", "two"}) {
            try (var receiver = Gateway.builder().receiver().topicName(topic).subscriptionName(each)
                    .disableAutoComplete().buildClient()) {
                var message = receiver.receiveMessages(1, Gateway.WAIT).stream().findFirst().orElseThrow();
                assertEquals("a", message.getBody().toString());
                receiver.complete(message);
            }
        }
    }

    @Test
    void rulesAreListedAndDeleted() {
        String topic = Gateway.topic("mine");
        try (var manager = manager(topic, "mine")) {
            manager.createRule("sql", new CreateRuleOptions(new SqlRuleFilter("color = 'red' AND size > 3")));
            manager.createRule("correlation", new CreateRuleOptions(new CorrelationRuleFilter().setCorrelationId("c").setLabel("l")));
            manager.createRule("all", new CreateRuleOptions(new TrueRuleFilter()));
            manager.createRule("none", new CreateRuleOptions(new FalseRuleFilter()));
            manager.createRule("action", new CreateRuleOptions(new SqlRuleFilter("1 = 1")).setAction(new SqlRuleAction("SET size = 4")));
            var rules = manager.listRules().stream().collect(Collectors.toMap(each -> each.getName(), each -> each));
            assertEquals(Set.of("$Default", "sql", "correlation", "all", "none", "action"), rules.keySet());
            assertEquals("color = 'red' AND size > 3", ((SqlRuleFilter) rules.get("sql").getFilter()).getSqlExpression());
            var correlation = (CorrelationRuleFilter) rules.get("correlation").getFilter();
            assertEquals("c", correlation.getCorrelationId());
            assertEquals("l", correlation.getLabel());
            assertEquals(TrueRuleFilter.class, rules.get("all").getFilter().getClass());
            assertEquals(FalseRuleFilter.class, rules.get("none").getFilter().getClass());
            assertEquals("SET size = 4", ((SqlRuleAction) rules.get("action").getAction()).getSqlExpression());
            rules.keySet().forEach(manager::deleteRule);
            assertEquals(0, manager.listRules().stream().count());
        }
    }

    @Test
    void aRuleChoosesMessages() {
        String topic = Gateway.topic("mine");
        try (var manager = manager(topic, "mine")) {
            manager.deleteRule("$Default");
            var filter = new CorrelationRuleFilter().setLabel("keep");
            filter.getProperties().put("size", 3);
            manager.createRule("keep", new CreateRuleOptions(filter));
        }
        var kept = new ServiceBusMessage("kept").setSubject("keep");
        kept.getApplicationProperties().put("size", 3);
        publish(topic, new ServiceBusMessage("dropped").setSubject("keep"), kept);
        try (var receiver = Gateway.builder().receiver().topicName(topic).subscriptionName("mine")
                .disableAutoComplete().buildClient()) {
            assertEquals("kept", receiver.peekMessage().getBody().toString());
            assertNull(receiver.peekMessage());
        }
    }

    @Test
    void aSqlRuleAndItsActionAreApplied() {
        String topic = Gateway.topic("mine");
        try (var manager = manager(topic, "mine")) {
            manager.deleteRule("$Default");
            manager.createRule("sql", new CreateRuleOptions(
                new SqlRuleFilter("sys.Label LIKE 'a%' AND size IN (1, 2)"))
                .setAction(new SqlRuleAction("SET seen = 'yes'; REMOVE size")));
        }
        var message = new ServiceBusMessage("x").setSubject("abc");
        message.getApplicationProperties().put("size", 2);
        publish(topic, message);
        try (var receiver = Gateway.builder().receiver().topicName(topic).subscriptionName("mine")
                .disableAutoComplete().buildClient()) {
            assertEquals(Map.of("seen", "yes", "RuleName", "sql"), receiver.peekMessage().getApplicationProperties());
        }
    }

    @Test
    void aRuleOfAKnownNameIsRefused() {
        String topic = Gateway.topic("mine");
        try (var manager = manager(topic, "mine")) {
            assertThrows(AzureException.class, () -> manager.createRule("$Default", new CreateRuleOptions(new TrueRuleFilter())));
            assertThrows(AzureException.class, () -> manager.deleteRule("missing"));
            assertThrows(RuntimeException.class, () -> manager.createRule("bad", new CreateRuleOptions(new SqlRuleFilter("color ==== 'red'"))));
        }
    }
}
