// Package rabbitmq publishes with amqp091-go while the broker is killed, and while it's frozen.
package rabbitmq

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"pairgate/interop/place"
)

const (
	messages = 10_000
	rate     = 250 // messages a second
	most     = 200 // that have no confirm yet
	// For the next message, at the end: the broker may just start, and the backlog come home.
	patience = 2 * time.Minute
	// For a copy, once all messages are there.
	idle = 5 * time.Second
)

type confirm struct {
	acked bool
	took  time.Duration
}

func survives(t *testing.T, harm string) {
	queue := "go-" + harm
	connection, err := amqp.Dial("amqp://guest:guest@" + place.Address() + "/")
	place.Good(t, err)
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	place.Good(t, err)
	quorum := amqp.Table{"x-queue-type": "quorum"}
	_, err = channel.QueueDeclare(queue, true, false, false, false, quorum)
	place.Good(t, err)
	place.Good(t, channel.Confirm(false))
	folder := place.Wanted("INTEROP_HARMS")
	place.Good(t, os.WriteFile(filepath.Join(folder, harm), nil, 0o600))

	longest := publish(t, channel, queue)
	copies := drain(t, channel, queue)
	told := fmt.Sprintf("%d confirmed, the longest after %.2f s; %d copies", messages, longest.Seconds(), copies)
	place.Good(t, os.WriteFile(filepath.Join(folder, harm+".figures"), []byte(told), 0o600))
}

// publish returns the longest time from a publish to its confirm.
func publish(t *testing.T, channel *amqp.Channel, queue string) (longest time.Duration) {
	confirms, slots, begin := make(chan confirm, messages), make(chan struct{}, most), time.Now()
	for n := range messages {
		time.Sleep(time.Until(begin.Add(time.Duration(n) * time.Second / rate)))
		slots <- struct{}{}
		asked := time.Now()
		deferred, err := channel.PublishWithDeferredConfirmWithContext(
			context.Background(), "", queue, false, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(strconv.Itoa(n))},
		)
		place.Good(t, err)
		go func() {
			acked := deferred.Wait()
			confirms <- confirm{acked, time.Since(asked)}
			<-slots
		}()
	}
	for range messages {
		each := <-confirms
		if !each.acked {
			t.Fatal("a publish was refused, or its channel has ended")
		}
		longest = max(longest, each.took)
	}
	return longest
}

// drain takes all messages, and returns how many came more than once.
func drain(t *testing.T, channel *amqp.Channel, queue string) (copies int) {
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	place.Good(t, err)
	seen := map[string]bool{}
	for {
		wait := patience
		if len(seen) == messages {
			wait = idle
		}
		select {
		case each, ok := <-deliveries:
			if !ok {
				t.Fatal("the consumer's channel has ended")
			}
			if seen[string(each.Body)] {
				copies++
			}
			seen[string(each.Body)] = true
		case <-time.After(wait):
			if len(seen) < messages {
				t.Fatalf("%d messages are lost", messages-len(seen))
			}
			return copies
		}
	}
}

func TestNoPublisherNoticesABrokerThatIsKilled(t *testing.T) { survives(t, "killed") }

func TestNoPublisherNoticesABrokerThatIsFrozen(t *testing.T) { survives(t, "frozen") }
