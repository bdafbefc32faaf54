package servicebus

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/coder/websocket"

	"pairgate/interop/place"
)

func overWebSocket(ctx context.Context, args azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
	options := &websocket.DialOptions{Subprotocols: []string{"amqp"}, HTTPClient: place.HTTP()}
	made, _, err := websocket.Dial(ctx, args.Host, options)
	if err != nil {
		return nil, err
	}
	return websocket.NetConn(context.Background(), made, websocket.MessageBinary), nil
}

func TestMessagesTravelOverAWebSocket(t *testing.T) {
	name := queue(t, nil)
	client := clientOf(t, azservicebus.ClientOptions{NewWebSocketConn: overWebSocket})
	send(t, client, name, &azservicebus.Message{Body: make([]byte, 100_000)})

	receiver, got := receive(t, client, name, nil)

	place.Same(t, len(got.Body), 100_000)
	place.Good(t, receiver.CompleteMessage(place.Soon(t), got, nil))
}

func signature(resource string, life time.Duration) string {
	escaped, expires := url.QueryEscape(resource), fmt.Sprint(time.Now().Add(life).Unix())
	mac := hmac.New(sha256.New, []byte(place.Key))
	mac.Write([]byte(escaped + "\n" + expires))
	signed := url.QueryEscape(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return fmt.Sprintf("SharedAccessSignature sr=%s&sig=%s&se=%s&skn=%s", escaped, signed, expires, place.Name)
}

func signed(t *testing.T, signature string) *azservicebus.Client {
	connection := fmt.Sprintf("Endpoint=sb://%s/;SharedAccessSignature=%s", place.Host, signature)
	options := &azservicebus.ClientOptions{
		TLSConfig: place.TLS(), CustomEndpoint: place.Address(),
		RetryOptions: azservicebus.RetryOptions{MaxRetries: -1},
	}
	client, err := azservicebus.NewClientFromConnectionString(connection, options)
	place.Good(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

func TestASignatureForABareHostConnects(t *testing.T) {
	name := queue(t, nil)

	send(t, signed(t, signature(place.Host, time.Hour)), name, &azservicebus.Message{Body: []byte("x")})
}

func TestAnExpiredSignatureIsRefusedInKnownWords(t *testing.T) {
	sender, err := signed(t, signature(place.Host, -time.Hour)).NewSender(queue(t, nil), nil)
	place.Good(t, err)

	err = sender.SendMessage(place.Soon(t), &azservicebus.Message{}, nil)

	place.Same(t, code(err), azservicebus.CodeUnauthorizedAccess)
	place.Same(t, strings.Contains(err.Error(), "ExpiredToken: The token is expired."), true)
}

func TestAnEntityThatIsMissingHasItsCode(t *testing.T) {
	sender, err := clientOf(t, azservicebus.ClientOptions{}).NewSender("missing", nil)
	place.Good(t, err)

	err = sender.SendMessage(place.Soon(t), &azservicebus.Message{}, nil)

	place.Same(t, code(err), azservicebus.CodeNotFound)
}

func TestAReceiverWithoutASessionIsToldInKnownWords(t *testing.T) {
	receiver, err := clientOf(t, azservicebus.ClientOptions{}).NewReceiverForQueue(sessions(t), nil)
	place.Good(t, err)

	_, err = receiver.ReceiveMessages(place.Soon(t), 1, nil)

	wanted := "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."
	place.Same(t, strings.Contains(err.Error(), wanted), true)
}
