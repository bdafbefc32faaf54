// Package servicebus runs azservicebus, Service Bus's own client for Go, over TLS.
package servicebus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"pairgate/interop/place"
)

func manager(t *testing.T) *admin.Client {
	options := &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: place.HTTP()}}
	made, err := admin.NewClientFromConnectionString(place.Connection, options)
	place.Good(t, err)
	return made
}

func clientOf(t *testing.T, options azservicebus.ClientOptions) *azservicebus.Client {
	options.TLSConfig, options.CustomEndpoint = place.TLS(), place.Address()
	client, err := azservicebus.NewClientFromConnectionString(place.Connection, &options)
	place.Good(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

func queue(t *testing.T, properties *admin.QueueProperties) string {
	name := fmt.Sprintf("q%d", time.Now().UnixNano())
	_, err := manager(t).CreateQueue(place.Soon(t), name, &admin.CreateQueueOptions{Properties: properties})
	place.Good(t, err)
	return name
}

func send(t *testing.T, client *azservicebus.Client, queue string, messages ...*azservicebus.Message) {
	sender, err := client.NewSender(queue, nil)
	place.Good(t, err)
	for _, each := range messages {
		place.Good(t, sender.SendMessage(place.Soon(t), each, nil))
	}
	place.Good(t, sender.Close(place.Soon(t)))
}

func receive(t *testing.T, client *azservicebus.Client, queue string, options *azservicebus.ReceiverOptions) (*azservicebus.Receiver, *azservicebus.ReceivedMessage) {
	receiver, err := client.NewReceiverForQueue(queue, options)
	place.Good(t, err)
	found, err := receiver.ReceiveMessages(place.Soon(t), 1, nil)
	place.Good(t, err)
	place.Same(t, len(found), 1)
	return receiver, found[0]
}

var dead = &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}

func TestEveryPropertyArrives(t *testing.T) {
	client, name := clientOf(t, azservicebus.ClientOptions{}), queue(t, nil)
	id, kind, life := "id", "text/plain", time.Hour
	send(t, client, name, &azservicebus.Message{
		MessageID: &id, ContentType: &kind, TimeToLive: &life, Body: []byte("body"),
		ApplicationProperties: map[string]any{"number": int64(7), "text": "seven"},
	})

	receiver, got := receive(t, client, name, nil)

	place.Same(t, got.MessageID, id)
	place.Same(t, *got.ContentType, kind)
	place.Same(t, *got.TimeToLive, life)
	place.Same(t, string(got.Body), "body")
	place.Same(t, got.ApplicationProperties["number"].(int64), 7)
	place.Same(t, *got.SequenceNumber, 1)
	place.Same(t, got.State, azservicebus.MessageStateActive)
	place.Same(t, got.DeliveryCount, 1)
	place.Same(t, got.LockedUntil.After(time.Now()), true)
	place.Good(t, receiver.RenewMessageLock(place.Soon(t), got, nil))
	place.Good(t, receiver.CompleteMessage(place.Soon(t), got, nil))
}

func TestABatchArrivesInOrder(t *testing.T) {
	client, name := clientOf(t, azservicebus.ClientOptions{}), queue(t, nil)
	sender, err := client.NewSender(name, nil)
	place.Good(t, err)
	batch, err := sender.NewMessageBatch(place.Soon(t), nil)
	place.Good(t, err)
	for i := range 100 {
		place.Good(t, batch.AddMessage(&azservicebus.Message{Body: fmt.Append(nil, i)}, nil))
	}
	place.Good(t, sender.SendMessageBatch(place.Soon(t), batch, nil))

	receiver, err := client.NewReceiverForQueue(name, &azservicebus.ReceiverOptions{
		ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete,
	})
	place.Good(t, err)
	for i := 0; i < 100; {
		found, err := receiver.ReceiveMessages(place.Soon(t), 100, nil)
		place.Good(t, err)
		for _, each := range found {
			place.Same(t, string(each.Body), fmt.Sprint(i))
			i++
		}
	}
}

func TestALargeMessageHasManyFrames(t *testing.T) {
	client, name := clientOf(t, azservicebus.ClientOptions{}), queue(t, nil)
	body := bytes.Repeat([]byte("x"), 200_000)
	send(t, client, name, &azservicebus.Message{Body: body})

	receiver, got := receive(t, client, name, nil)

	place.Same(t, bytes.Equal(got.Body, body), true)
	place.Good(t, receiver.CompleteMessage(place.Soon(t), got, nil))
}

func TestAMessageThatIsTooLargeIsRefusedWithItsCode(t *testing.T) {
	client, name := clientOf(t, azservicebus.ClientOptions{}), queue(t, nil)
	sender, err := client.NewSender(name, nil)
	place.Good(t, err)

	err = sender.SendMessage(place.Soon(t), &azservicebus.Message{Body: make([]byte, 300_000)}, nil)

	place.Same(t, errors.Is(err, azservicebus.ErrMessageTooLarge), true)
}

func TestADeadLetterSaysWhyAndCountsNoFailedDelivery(t *testing.T) {
	client, name := clientOf(t, azservicebus.ClientOptions{}), queue(t, nil)
	send(t, client, name, &azservicebus.Message{Body: []byte("x")})
	receiver, got := receive(t, client, name, nil)
	reason, text := "reason", "description"
	place.Good(t, receiver.DeadLetterMessage(place.Soon(t), got, &azservicebus.DeadLetterOptions{
		Reason: &reason, ErrorDescription: &text,
		PropertiesToModify: map[string]any{"changed": true},
	}))

	_, letter := receive(t, client, name, dead)

	place.Same(t, *letter.DeadLetterReason, reason)
	place.Same(t, *letter.DeadLetterErrorDescription, text)
	place.Same(t, letter.ApplicationProperties["changed"].(bool), true)
	place.Same(t, letter.DeliveryCount, 1) // the client adds one to the header's
}

func TestAnAbandonedMessageComesAgain(t *testing.T) {
	client, name := clientOf(t, azservicebus.ClientOptions{}), queue(t, nil)
	send(t, client, name, &azservicebus.Message{Body: []byte("x")})
	receiver, got := receive(t, client, name, nil)
	place.Good(t, receiver.AbandonMessage(place.Soon(t), got, nil))

	again, err := receiver.ReceiveMessages(place.Soon(t), 1, nil)

	place.Good(t, err)
	place.Same(t, again[0].DeliveryCount, 2)
	place.Good(t, receiver.CompleteMessage(place.Soon(t), again[0], nil))
}

func TestADeferredMessageIsReceivedByItsNumber(t *testing.T) {
	client, name := clientOf(t, azservicebus.ClientOptions{}), queue(t, nil)
	send(t, client, name, &azservicebus.Message{Body: []byte("later")})
	receiver, got := receive(t, client, name, nil)
	place.Good(t, receiver.DeferMessage(place.Soon(t), got, nil))

	found, err := receiver.ReceiveDeferredMessages(place.Soon(t), []int64{*got.SequenceNumber}, nil)

	place.Good(t, err)
	place.Same(t, found[0].State, azservicebus.MessageStateDeferred)
	place.Good(t, receiver.CompleteMessage(place.Soon(t), found[0], nil))
}

func TestAScheduleIsPeekedAndCancelled(t *testing.T) {
	client, name := clientOf(t, azservicebus.ClientOptions{}), queue(t, nil)
	sender, err := client.NewSender(name, nil)
	place.Good(t, err)
	due := time.Now().Add(time.Hour)
	numbers, err := sender.ScheduleMessages(place.Soon(t), []*azservicebus.Message{{Body: []byte("a")}, {Body: []byte("b")}}, due, nil)
	place.Good(t, err)
	receiver, err := client.NewReceiverForQueue(name, nil)
	place.Good(t, err)

	peeked, err := receiver.PeekMessages(place.Soon(t), 10, nil)
	place.Good(t, err)
	place.Same(t, len(peeked), 2)
	place.Same(t, peeked[0].State, azservicebus.MessageStateScheduled)
	place.Good(t, sender.CancelScheduledMessages(place.Soon(t), numbers, nil))

	from := int64(0)
	left, err := receiver.PeekMessages(place.Soon(t), 10, &azservicebus.PeekMessagesOptions{FromSequenceNumber: &from})
	place.Good(t, err)
	place.Same(t, len(left), 0)
}

func TestALockThatIsGoneHasItsCode(t *testing.T) {
	lock := "PT1S"
	client, name := clientOf(t, azservicebus.ClientOptions{}), queue(t, &admin.QueueProperties{LockDuration: &lock})
	send(t, client, name, &azservicebus.Message{Body: []byte("x")})
	receiver, got := receive(t, client, name, nil)
	time.Sleep(1500 * time.Millisecond)

	err := receiver.CompleteMessage(place.Soon(t), got, nil)

	place.Same(t, code(err), azservicebus.CodeLockLost)
}

func code(err error) azservicebus.Code {
	var known *azservicebus.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return azservicebus.Code(fmt.Sprint(err))
}
