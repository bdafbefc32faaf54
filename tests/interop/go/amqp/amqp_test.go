// Package amqp runs go-amqp, a client that knows nothing of Service Bus.
package amqp

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/Azure/go-amqp"

	"pairgate/interop/place"
)

func session(t *testing.T) *amqp.Session {
	options := &amqp.ConnOptions{SASLType: amqp.SASLTypePlain(place.Name, place.Key)}
	connection, err := amqp.Dial(place.Soon(t), "amqp://"+place.Address(), options)
	place.Good(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	made, err := connection.NewSession(place.Soon(t), nil)
	place.Good(t, err)
	return made
}

func there(t *testing.T, message *amqp.Message, settle func(*amqp.Receiver, *amqp.Message) error) *amqp.Message {
	session, queue := session(t), place.Wanted("INTEROP_QUEUE")
	sender, err := session.NewSender(place.Soon(t), queue, nil)
	place.Good(t, err)
	place.Good(t, sender.Send(place.Soon(t), message, nil))
	receiver, err := session.NewReceiver(place.Soon(t), queue, &amqp.ReceiverOptions{Credit: 1})
	place.Good(t, err)
	got, err := receiver.Receive(place.Soon(t), nil)
	place.Good(t, err)
	place.Good(t, settle(receiver, got))
	place.Good(t, receiver.Close(place.Soon(t)))
	return got
}

func accept(receiver *amqp.Receiver, message *amqp.Message) error {
	return receiver.AcceptMessage(context.Background(), message)
}

func TestAMessageOfEverySectionArrives(t *testing.T) {
	subject, key := "subject", "key"
	got := there(t, &amqp.Message{
		Header:                &amqp.MessageHeader{Durable: true, Priority: 7, TTL: time.Hour},
		Annotations:           amqp.Annotations{"x-mine": "note"},
		Properties:            &amqp.MessageProperties{MessageID: uint64(7), Subject: &subject, GroupID: &key},
		ApplicationProperties: map[string]any{"list": int32(-1), "day": time.UnixMilli(0).UTC()},
		Data:                  [][]byte{[]byte("two "), []byte("slices")},
		Footer:                amqp.Annotations{"x-foot": "end"},
	}, accept)

	place.Same(t, got.Header.Priority, 7)
	place.Same(t, got.Annotations["x-mine"].(string), "note")
	place.Same(t, got.Properties.MessageID.(uint64), 7)
	place.Same(t, *got.Properties.Subject, subject)
	place.Same(t, got.ApplicationProperties["list"].(int32), -1)
	place.Same(t, got.ApplicationProperties["day"].(time.Time).UnixMilli(), 0)
	place.Same(t, string(bytes.Join(got.Data, nil)), "two slices")
	place.Same(t, got.Footer["x-foot"].(string), "end")
	place.Same(t, got.Header.FirstAcquirer, false)
}

func TestAValueArrivesWithItsType(t *testing.T) {
	got := there(t, &amqp.Message{Value: map[string]any{"a": []any{int64(1), "b", true}}}, accept)

	place.Same(t, got.Value.(map[string]any)["a"].([]any)[0].(int64), 1)
}

func TestAReleasedMessageComesAgain(t *testing.T) {
	got := there(t, amqp.NewMessage([]byte("again")), func(receiver *amqp.Receiver, message *amqp.Message) error {
		if err := receiver.ReleaseMessage(context.Background(), message); err != nil {
			return err
		}
		again, err := receiver.Receive(place.Soon(t), nil)
		if err != nil {
			return err
		}
		return accept(receiver, again)
	})

	place.Same(t, string(got.GetData()), "again")
}

func TestALargeMessageHasManyFrames(t *testing.T) {
	got := there(t, amqp.NewMessage(bytes.Repeat([]byte("x"), 250_000)), accept)

	place.Same(t, len(got.GetData()), 250_000)
}
