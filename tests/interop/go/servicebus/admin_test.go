package servicebus

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"pairgate/interop/place"
)

func topic(t *testing.T) string {
	name := fmt.Sprintf("t%d", time.Now().UnixNano())
	_, err := manager(t).CreateTopic(place.Soon(t), name, nil)
	place.Good(t, err)
	return name
}

func TestAQueueIsMadeChangedListedAndDeleted(t *testing.T) {
	manager, name := manager(t), queue(t, nil)
	got, err := manager.GetQueue(place.Soon(t), name, nil)
	place.Good(t, err)
	most := int32(3)
	got.QueueProperties.MaxDeliveryCount = &most
	changed, err := manager.UpdateQueue(place.Soon(t), name, got.QueueProperties, nil)
	place.Good(t, err)
	place.Same(t, *changed.MaxDeliveryCount, most)
	found := 0
	for pager := manager.NewListQueuesPager(nil); pager.More(); {
		page, err := pager.NextPage(place.Soon(t))
		place.Good(t, err)
		for _, each := range page.Queues {
			if each.QueueName == name {
				found++
			}
		}
	}
	place.Same(t, found, 1)
	_, err = manager.DeleteQueue(place.Soon(t), name, nil)
	place.Good(t, err)

	gone, err := manager.GetQueue(place.Soon(t), name, nil)

	place.Good(t, err)
	place.Same(t, gone == nil, true)
}

func TestTheCountsOfAQueueAreTold(t *testing.T) {
	name := queue(t, nil)
	send(t, clientOf(t, azservicebus.ClientOptions{}), name, &azservicebus.Message{}, &azservicebus.Message{})

	told, err := manager(t).GetQueueRuntimeProperties(place.Soon(t), name, nil)

	place.Good(t, err)
	place.Same(t, told.ActiveMessageCount, 2)
	place.Same(t, told.TotalMessageCount, 2)
}

func TestAFixedPropertyIsRefusedInKnownWords(t *testing.T) {
	manager, name, yes := manager(t), queue(t, nil), true
	got, err := manager.GetQueue(place.Soon(t), name, nil)
	place.Good(t, err)
	got.QueueProperties.RequiresSession = &yes

	_, err = manager.UpdateQueue(place.Soon(t), name, got.QueueProperties, nil)

	wanted := "The value for the RequiresSession property of an existing Queue cannot be changed"
	place.Same(t, err != nil && strings.Contains(err.Error(), wanted), true)
}

func TestThePartitioningOfATopicStays(t *testing.T) {
	manager, name, yes := manager(t), topic(t), true
	got, err := manager.GetTopic(place.Soon(t), name, nil)
	place.Good(t, err)
	got.TopicProperties.EnablePartitioning = &yes

	_, err = manager.UpdateTopic(place.Soon(t), name, got.TopicProperties, nil)

	place.Same(t, err != nil && strings.Contains(err.Error(), "Partitioning cannot be changed for Topic"), true)
}

func TestASubscriptionGetsWhatItsRulesSelect(t *testing.T) {
	manager, name, client := manager(t), topic(t), clientOf(t, azservicebus.ClientOptions{})
	for _, each := range []string{"all", "red"} {
		_, err := manager.CreateSubscription(place.Soon(t), name, each, nil)
		place.Good(t, err)
	}
	rule := &admin.CreateRuleOptions{Name: ptr("red"), Filter: &admin.SQLFilter{Expression: "color = 'red'"}, Action: &admin.SQLAction{Expression: "SET marked = TRUE"}}
	_, err := manager.CreateRule(place.Soon(t), name, "red", rule)
	place.Good(t, err)
	_, err = manager.DeleteRule(place.Soon(t), name, "red", "$Default", nil)
	place.Good(t, err)
	rules, err := manager.NewListRulesPager(name, "red", nil).NextPage(place.Soon(t))
	place.Good(t, err)
	place.Same(t, len(rules.Rules), 1)
	place.Same(t, rules.Rules[0].Filter.(*admin.SQLFilter).Expression, "color = 'red'")
	send(t, client, name, &azservicebus.Message{ApplicationProperties: map[string]any{"color": "blue"}},
		&azservicebus.Message{ApplicationProperties: map[string]any{"color": "red"}})

	receiver, err := client.NewReceiverForSubscription(name, "red", nil)
	place.Good(t, err)
	found, err := receiver.ReceiveMessages(place.Soon(t), 10, nil)
	place.Good(t, err)
	counts, err := manager.GetSubscriptionRuntimeProperties(place.Soon(t), name, "all", nil)
	place.Good(t, err)

	place.Same(t, len(found), 1)
	place.Same(t, found[0].ApplicationProperties["marked"].(bool), true)
	place.Same(t, counts.ActiveMessageCount, 2)
}

func TestTheNamespaceTellsItsTier(t *testing.T) {
	told, err := manager(t).GetNamespaceProperties(place.Soon(t), nil)

	place.Good(t, err)
	place.Same(t, told.SKU, "Standard")
}

func ptr[T any](value T) *T { return &value }
