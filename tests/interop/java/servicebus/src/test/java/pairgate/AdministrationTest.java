package pairgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.azure.core.exception.HttpResponseException;
import com.azure.core.exception.ResourceExistsException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import com.azure.messaging.servicebus.administration.models.EntityStatus;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import java.time.Duration;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** The administration client. */
class AdministrationTest {
    private final ServiceBusAdministrationClient admin = Gateway.admin();

    @Test
    void aQueueIsManaged() {
        String name = Gateway.name("managed");
        assertFalse(admin.getQueueExists(name));
        var created = admin.createQueue(name, new CreateQueueOptions().setLockDuration(Duration.ofSeconds(45))
            .setMaxDeliveryCount(7).setDefaultMessageTimeToLive(Duration.ofDays(2)).setUserMetadata("meta")
            .setDuplicateDetectionRequired(true).setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(3))
            .setDeadLetteringOnMessageExpiration(true).setAutoDeleteOnIdle(Duration.ofHours(1)).setMaxSizeInMegabytes(2048));
        assertEquals(name, created.getName());
        assertTrue(admin.getQueueExists(name));
        var found = admin.getQueue(name);
        assertEquals(Duration.ofSeconds(45), found.getLockDuration());
        assertEquals(7, found.getMaxDeliveryCount());
        assertEquals(Duration.ofDays(2), found.getDefaultMessageTimeToLive());
        assertEquals(Duration.ofMinutes(3), found.getDuplicateDetectionHistoryTimeWindow());
        assertEquals(Duration.ofHours(1), found.getAutoDeleteOnIdle());
        assertEquals("meta", found.getUserMetadata());
        assertEquals(2048, found.getMaxSizeInMegabytes());
        assertTrue(found.isDuplicateDetectionRequired());
        assertTrue(found.isDeadLetteringOnMessageExpiration());
        assertEquals(EntityStatus.ACTIVE, found.getStatus());
        found.setMaxDeliveryCount(9).setUserMetadata("new");
        assertEquals(9, admin.updateQueue(found).getMaxDeliveryCount());
        assertEquals("new", admin.getQueue(name).getUserMetadata());
        assertTrue(admin.listQueues().stream().anyMatch(each -> each.getName().equals(name)));
        admin.deleteQueue(name);
        assertFalse(admin.getQueueExists(name));
        assertThrows(ResourceNotFoundException.class, () -> admin.getQueue(name));
        assertThrows(ResourceNotFoundException.class, () -> admin.deleteQueue(name));
    }

    @Test
    void anExistingNameIsRefused() {
        String name = Gateway.queue();
        assertThrows(ResourceExistsException.class, () -> admin.createQueue(name));
    }

    @Test
    void aWrongOptionIsRefused() {
        assertThrows(HttpResponseException.class, () -> admin.createQueue(Gateway.name("wrong"),
            new CreateQueueOptions().setLockDuration(Duration.ofHours(1))));
    }

    @Test
    void countsAreReported() {
        String queue = Gateway.queue();
        Gateway.send(queue, "a", "b");
        try (var sender = Gateway.sender(queue)) {
            sender.scheduleMessage(new ServiceBusMessage("c"), java.time.OffsetDateTime.now().plusHours(1));
        }
        var counts = admin.getQueueRuntimeProperties(queue);
        assertEquals(2, counts.getActiveMessageCount());
        assertEquals(1, counts.getScheduledMessageCount());
        assertEquals(0, counts.getDeadLetterMessageCount());
        assertEquals(3, counts.getTotalMessageCount());
        assertTrue(counts.getSizeInBytes() > 0);
        assertNotNull(counts.getCreatedAt());
        assertNotNull(counts.getUpdatedAt());
        assertNotNull(counts.getAccessedAt());
    }

    @Test
    void aTopicAndASubscriptionAreManaged() {
        String topic = Gateway.name("topic");
        var created = admin.createTopic(topic, new CreateTopicOptions().setUserMetadata("meta").setOrderingSupported(true));
        assertEquals("meta", created.getUserMetadata());
        assertTrue(admin.getTopicExists(topic));
        String target = Gateway.queue();
        var subscription = admin.createSubscription(topic, "Mine", new CreateSubscriptionOptions()
            .setForwardTo(target).setMaxDeliveryCount(5).setLockDuration(Duration.ofSeconds(20)));
        assertEquals("Mine", subscription.getSubscriptionName());
        assertEquals(topic, subscription.getTopicName());
        assertTrue(subscription.getForwardTo().endsWith(target), subscription.getForwardTo());
        assertTrue(admin.getSubscriptionExists(topic, "Mine"));
        assertFalse(admin.getSubscriptionExists(topic, "other"));
        assertEquals(1, admin.listSubscriptions(topic).stream().count());
        subscription.setForwardTo(null).setMaxDeliveryCount(6);
        assertEquals(6, admin.updateSubscription(subscription).getMaxDeliveryCount());
        try (var sender = Gateway.builder().sender().topicName(topic).buildClient()) {
            sender.sendMessage(new ServiceBusMessage("x"));
        }
        assertEquals(1, admin.getSubscriptionRuntimeProperties(topic, "Mine").getActiveMessageCount());
        assertEquals(1, admin.getTopicRuntimeProperties(topic).getSubscriptionCount());
        assertTrue(admin.listTopics().stream().anyMatch(each -> each.getName().equals(topic)));
        admin.deleteSubscription(topic, "Mine");
        assertEquals(0, admin.listSubscriptions(topic).stream().count());
        admin.deleteTopic(topic);
        assertFalse(admin.getTopicExists(topic));
    }

    @Test
    void rulesAreManaged() {
        String topic = Gateway.topic("mine");
        admin.createRule(topic, "sql", "mine", new CreateRuleOptions(
            new SqlRuleFilter("size > 3")).setAction(new SqlRuleAction("SET size = 4")));
        var filter = new CorrelationRuleFilter().setCorrelationId("c");
        filter.getProperties().put("color", "red");
        filter.getProperties().put("size", 3);
        admin.createRule(topic, "correlation", "mine", new CreateRuleOptions(filter));
        var found = admin.getRule(topic, "mine", "sql");
        assertEquals("size > 3", ((SqlRuleFilter) found.getFilter()).getSqlExpression());
        assertEquals("SET size = 4", ((SqlRuleAction) found.getAction()).getSqlExpression());
        var correlation = (CorrelationRuleFilter) admin.getRule(topic, "mine", "correlation").getFilter();
        assertEquals("c", correlation.getCorrelationId());
        assertEquals("red", correlation.getProperties().get("color"));
        assertEquals("3", correlation.getProperties().get("size"));  // the client writes each as a string
        assertEquals(TrueRuleFilter.class, admin.getRule(topic, "mine", "$Default").getFilter().getClass());
        found.setFilter(new SqlRuleFilter("size > 5"));
        admin.updateRule(topic, "mine", found);
        assertEquals("size > 5", ((SqlRuleFilter) admin.getRule(topic, "mine", "sql").getFilter()).getSqlExpression());
        assertEquals(3, admin.listRules(topic, "mine").stream().count());
        admin.deleteRule(topic, "mine", "$Default");
        assertEquals(java.util.Set.of("sql", "correlation"), admin.listRules(topic, "mine").stream()
            .map(each -> each.getName()).collect(Collectors.toSet()));
    }

    @Test
    void aSubscriptionBeginsWithItsRule() {
        String topic = Gateway.topic();
        admin.createSubscription(topic, "mine", "only", new CreateSubscriptionOptions(),
            new CreateRuleOptions(new SqlRuleFilter("size = 1")));
        assertEquals("only", admin.listRules(topic, "mine").stream().findFirst().orElseThrow().getName());
    }

    @Test
    void manyQueuesAreListedInPages() {
        String prefix = Gateway.name("page");
        for (int each = 0; each < 105; each++) {
            admin.createQueue(prefix + "-" + each);
        }
        assertEquals(105, admin.listQueues().stream().filter(each -> each.getName().startsWith(prefix)).count());
        for (int each = 0; each < 105; each++) {
            admin.deleteQueue(prefix + "-" + each);
        }
    }

    @Test
    void theNamespaceIsDescribed() {
        var properties = admin.getNamespaceProperties();
        assertNotNull(properties.getName());
        assertNotNull(properties.getMessagingSku());
        assertNotNull(properties.getCreatedTime());
    }
}
