// Package dapr runs Dapr's conformance tests of its components for Service Bus and Storage queues,
// with the options of its own tests/config.
package dapr

import (
	"os"
	"testing"

	"github.com/dapr/components-contrib/bindings"
	"github.com/dapr/components-contrib/bindings/azure/servicebusqueues"
	"github.com/dapr/components-contrib/bindings/azure/storagequeues"
	"github.com/dapr/components-contrib/pubsub"
	"github.com/dapr/components-contrib/pubsub/azure/servicebus/queues"
	"github.com/dapr/components-contrib/pubsub/azure/servicebus/topics"
	conf_bindings "github.com/dapr/components-contrib/tests/conformance/bindings"
	conf_pubsub "github.com/dapr/components-contrib/tests/conformance/pubsub"
	"github.com/dapr/kit/logger"
)

const (
	account = "devstoreaccount1"
	key     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

var log = logger.NewLogger("interop")

// The runner trusts the gateway's certificate for the whole process: SSL_CERT_FILE.
func connection() string {
	return "Endpoint=sb://localhost:" + os.Getenv("INTEROP_PORT") +
		"/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
}

func publishes(t *testing.T, component pubsub.PubSub, name string, properties map[string]string) {
	config, err := conf_pubsub.NewTestConfig(name, []string{"bulkpublish", "bulksubscribe"}, map[string]any{
		"pubsubName":             "azure-servicebus",
		"testTopicName":          name + "-test",
		"testTopicForBulkSub":    name + "-bulk",
		"testMultiTopic1Name":    name + "-multi1",
		"testMultiTopic2Name":    name + "-multi2",
		"checkInOrderProcessing": false,
	})
	if err != nil {
		t.Fatal(err)
	}
	conf_pubsub.ConformanceTests(t, properties, component, config)
}

func binds(t *testing.T, made func() bindings.InputOutputBinding, name string, properties map[string]string) {
	config, err := conf_bindings.NewTestConfig(name, []string{"create", "operations", "read"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	conf_bindings.ConformanceTests(t, properties, made(), made(), config)
}

func TestPubSubServiceBusTopics(t *testing.T) {
	publishes(t, topics.NewAzureServiceBusTopics(log), "topics",
		map[string]string{"connectionString": connection(), "consumerID": "testConsumer"})
}

func TestPubSubServiceBusQueues(t *testing.T) {
	publishes(t, queues.NewAzureServiceBusQueues(log), "queues",
		map[string]string{"connectionString": connection()})
}

func TestBindingServiceBusQueues(t *testing.T) {
	made := func() bindings.InputOutputBinding { return servicebusqueues.NewAzureServiceBusQueues(log) }
	binds(t, made, "azure.servicebusqueues",
		map[string]string{"connectionString": connection(), "queueName": "conf-tests", "ttlInSeconds": "60"})
}

func TestBindingStorageQueues(t *testing.T) {
	made := func() bindings.InputOutputBinding { return storagequeues.NewAzureStorageQueues(log) }
	binds(t, made, "azure.storagequeues", map[string]string{
		"storageAccount": account, "storageAccessKey": key, "queue": "conf-tests", "ttlInSeconds": "60",
		"endpoint": "https://localhost:" + os.Getenv("INTEROP_STORAGE_PORT"),
	})
}
