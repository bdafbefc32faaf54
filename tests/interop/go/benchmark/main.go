// A client of `benchmarks.service_bus` in a process of its own: azservicebus as its users know it. Each
// message in flight is a send of its own, or a completion of its own. Prints one JSON object, as the
// other clients. Usage: benchmark JOB
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const (
	calls = 32  // completions at once
	tick  = 100 // clock ticks of a second, as on each Linux of today
)

var job struct {
	Port                    int
	Servers                 map[string]int
	User, Password, Address string
	Window                  int
	Seconds                 float64
}

func good(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// proc(5): utime and stime follow the name, which ends with a parenthesis.
func processorTime(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	good(err)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	good(err)
	system, err := strconv.Atoi(fields[12])
	good(err)
	return float64(user+system) / tick
}

func own() float64 {
	var used syscall.Rusage
	good(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

type watch struct {
	began     time.Time
	used      float64
	servers   map[string]float64
	lock      sync.Mutex
	latencies []float64
}

func begin() *watch {
	servers := map[string]float64{}
	for name, pid := range job.Servers {
		servers[name] = processorTime(pid)
	}
	return &watch{began: time.Now(), used: own(), servers: servers}
}

func (w *watch) add(since time.Time) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.latencies = append(w.latencies, time.Since(since).Seconds())
}

func (w *watch) read() map[string]any {
	seconds, used, count := time.Since(w.began).Seconds(), own()-w.used, len(w.latencies)
	for name, pid := range job.Servers {
		w.servers[name] = (processorTime(pid) - w.servers[name]) / float64(count)
	}
	slices.Sort(w.latencies)
	return map[string]any{
		"messages": count, "seconds": seconds, "busy": used / seconds, "servers": w.servers,
		"p50": w.latencies[count/2], "p99": w.latencies[count*99/100],
	}
}

func send(client *azservicebus.Client) map[string]any {
	sender, err := client.NewSender(job.Address, nil)
	good(err)
	body := []byte(strings.Repeat("x", 1024))
	watch, end := begin(), time.Now().Add(time.Duration(job.Seconds*float64(time.Second)))
	var senders sync.WaitGroup
	for range job.Window {
		senders.Go(func() {
			for time.Now().Before(end) {
				began := time.Now()
				good(sender.SendMessage(context.Background(), &azservicebus.Message{Body: body}, nil))
				watch.add(began)
			}
		})
	}
	senders.Wait()
	found := watch.read()
	good(sender.Close(context.Background()))
	return found
}

func receive(client *azservicebus.Client, count int) map[string]any {
	receiver, err := client.NewReceiverForQueue(job.Address, nil)
	good(err)
	watch, received := begin(), make(chan *azservicebus.ReceivedMessage, job.Window)
	var completers sync.WaitGroup
	for range min(calls, job.Window) {
		completers.Go(func() {
			for message := range received {
				began := time.Now()
				good(receiver.CompleteMessage(context.Background(), message, nil))
				watch.add(began)
			}
		})
	}
	for count > 0 {
		messages, err := receiver.ReceiveMessages(context.Background(), job.Window, nil)
		good(err)
		for _, message := range messages {
			received <- message
		}
		count -= len(messages)
	}
	close(received)
	completers.Wait()
	found := watch.read()
	good(receiver.Close(context.Background()))
	return found
}

func main() {
	good(json.Unmarshal([]byte(os.Args[1]), &job))
	connection := fmt.Sprintf(
		"Endpoint=sb://127.0.0.1:%d;SharedAccessKeyName=%s;SharedAccessKey=%s;UseDevelopmentEmulator=true",
		job.Port, job.User, job.Password)
	client, err := azservicebus.NewClientFromConnectionString(connection, nil)
	good(err)
	sent := send(client)
	taken := receive(client, sent["messages"].(int))
	good(client.Close(context.Background()))
	good(json.NewEncoder(os.Stdout).Encode(map[string]any{"send": sent, "receive": taken}))
}
