// Package place says where the gateway is, and what else the runner has prepared.
package place

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	Host = "fakeresource.servicebus.windows.net"
	Key  = "SAS_KEY_VALUE"
	Name = "RootManageSharedAccessKey"
)

// Connection is the connection string of the gateway's root policy.
var Connection = fmt.Sprintf("Endpoint=sb://%s/;SharedAccessKeyName=%s;SharedAccessKey=%s", Host, Name, Key)

// Wanted is a variable of the runner.
func Wanted(name string) string {
	value := os.Getenv(name)
	if value == "" {
		panic("the runner sets " + name + ": python -m tests.interop go")
	}
	return value
}

// Address is the endpoint under test.
func Address() string { return "127.0.0.1:" + Wanted("INTEROP_PORT") }

// TLS trusts the gateway's certificate, by the name of Service Bus that it has.
func TLS() *tls.Config {
	pem, err := os.ReadFile(Wanted("INTEROP_AUTHORITY"))
	if err != nil {
		panic(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: trusted, ServerName: Host, MinVersion: tls.VersionTLS12}
}

// HTTP leads every host to the gateway.
func HTTP() *http.Client {
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, Address())
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, TLSClientConfig: TLS()}}
}

// Soon is a context that ends before the runner loses its patience.
func Soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// Signal sends a signal to the primary in its own process.
func Signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	text, err := os.ReadFile(Wanted("INTEROP_PRIMARY_PID"))
	Good(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	Good(t, err)
	Good(t, syscall.Kill(pid, signal))
}

// Good ends the test if there is an error.
func Good(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Same ends the test if the values differ.
func Same[T comparable](t *testing.T, found, wanted T) {
	t.Helper()
	if found != wanted {
		t.Fatalf("%v, expected %v", found, wanted)
	}
}
