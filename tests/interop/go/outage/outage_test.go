// Package outage sends with azservicebus while the primary, a process of its own, freezes and dies.
package outage

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"pairgate/interop/place"
)

const before, meanwhile = 20, 100

func survives(t *testing.T, queue string, begin, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	options := &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: place.HTTP()}}
	manager, err := admin.NewClientFromConnectionString(place.Connection, options)
	place.Good(t, err)
	_, err = manager.CreateQueue(ctx, queue, nil)
	place.Good(t, err)
	client, err := azservicebus.NewClientFromConnectionString(place.Connection, &azservicebus.ClientOptions{
		TLSConfig: place.TLS(), CustomEndpoint: place.Address(),
	})
	place.Good(t, err)
	defer func() { _ = client.Close(ctx) }()
	sender, err := client.NewSender(queue, nil)
	place.Good(t, err)
	for i := range before + meanwhile {
		if i == before {
			begin()
		}
		body := fmt.Append(nil, i)
		place.Good(t, sender.SendMessage(ctx, &azservicebus.Message{Body: body}, nil))
	}
	end()

	receiver, err := client.NewReceiverForQueue(queue, nil)
	place.Good(t, err)
	missing := map[string]bool{}
	for i := range before + meanwhile {
		missing[fmt.Sprint(i)] = true
	}
	for len(missing) > 0 {
		found, err := receiver.ReceiveMessages(ctx, 50, nil)
		place.Good(t, err)
		for _, each := range found {
			delete(missing, string(each.Body))
			place.Good(t, receiver.CompleteMessage(ctx, each, nil))
		}
	}
}

func TestNoSenderNoticesAPrimaryThatFreezes(t *testing.T) {
	survives(t, "frozen",
		func() { place.Signal(t, syscall.SIGSTOP) },
		func() { place.Signal(t, syscall.SIGCONT) })
}

// The runner starts it again some seconds later.
func TestNoSenderNoticesAPrimaryThatIsKilled(t *testing.T) {
	survives(t, "killed", func() { place.Signal(t, syscall.SIGKILL) }, func() {})
}
