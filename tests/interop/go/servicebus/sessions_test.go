package servicebus

import (
	"context"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"pairgate/interop/place"
)

func sessions(t *testing.T) string {
	yes := true
	return queue(t, &admin.QueueProperties{RequiresSession: &yes})
}

func TestASessionIsAcceptedByNameAndKeepsItsState(t *testing.T) {
	client, name, id := clientOf(t, azservicebus.ClientOptions{}), sessions(t), "one"
	send(t, client, name, &azservicebus.Message{SessionID: &id, Body: []byte("a")})

	session, err := client.AcceptSessionForQueue(place.Soon(t), name, id, nil)
	place.Good(t, err)
	place.Same(t, session.SessionID(), id)
	place.Same(t, session.LockedUntil().After(time.Now()), true)
	place.Good(t, session.SetSessionState(place.Soon(t), []byte("state"), nil))
	place.Good(t, session.RenewSessionLock(place.Soon(t), nil))
	state, err := session.GetSessionState(place.Soon(t), nil)
	place.Good(t, err)
	place.Same(t, string(state), "state")
	found, err := session.ReceiveMessages(place.Soon(t), 1, nil)
	place.Good(t, err)
	place.Same(t, *found[0].SessionID, id)
	place.Good(t, session.CompleteMessage(place.Soon(t), found[0], nil))
	place.Good(t, session.Close(place.Soon(t)))
}

func TestTheNextSessionIsTheOneThatHasMessages(t *testing.T) {
	client, name, id := clientOf(t, azservicebus.ClientOptions{}), sessions(t), "two"
	send(t, client, name, &azservicebus.Message{SessionID: &id, Body: []byte("a")})

	session, err := client.AcceptNextSessionForQueue(place.Soon(t), name, nil)

	place.Good(t, err)
	place.Same(t, session.SessionID(), id)
}

func TestASessionThatAnotherHoldsIsRefusedWithItsCode(t *testing.T) {
	client, name := clientOf(t, azservicebus.ClientOptions{RetryOptions: azservicebus.RetryOptions{MaxRetries: -1}}), sessions(t)
	_, err := client.AcceptSessionForQueue(place.Soon(t), name, "one", nil)
	place.Good(t, err)

	_, err = client.AcceptSessionForQueue(place.Soon(t), name, "one", nil)

	place.Same(t, err != nil, true)
}

func TestWithoutASessionTheWaitEndsWithItsCode(t *testing.T) {
	client, name := clientOf(t, azservicebus.ClientOptions{}), sessions(t)
	waited, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()

	_, err := client.AcceptNextSessionForQueue(waited, name, nil)

	place.Same(t, err != nil, true)
}

func TestTheSessionsOfAQueueAreListed(t *testing.T) {
	client, name, one, two := clientOf(t, azservicebus.ClientOptions{}), sessions(t), "one", "two"
	send(t, client, name, &azservicebus.Message{SessionID: &one}, &azservicebus.Message{SessionID: &two})

	pager, found := client.NewListSessionsForQueuePager(name, nil), 0
	for pager.More() {
		page, err := pager.NextPage(place.Soon(t))
		place.Good(t, err)
		found += len(page.Sessions)
	}

	place.Same(t, found, 2)
}
