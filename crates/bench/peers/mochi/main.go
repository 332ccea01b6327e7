// Mochi MQTT as a peer of the benchmarks: one TCP listener, everyone allowed, no persistence,
// queues large enough that nothing is dropped before the windows of the generator close.
package main

import (
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"syscall"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:1883", "address to listen on")
	version := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *version {
		fmt.Println("mochi", mqtt.Version)
		return
	}

	capabilities := mqtt.NewDefaultServerCapabilities()
	capabilities.MaximumClientWritesPending = 65536
	capabilities.MaximumInflight = math.MaxUint16
	capabilities.ReceiveMaximum = math.MaxUint16
	server := mqtt.New(&mqtt.Options{
		Capabilities: capabilities,
		Logger:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err := server.AddHook(new(auth.AllowHook), nil); err != nil {
		log.Fatal(err)
	}
	if err := server.AddListener(listeners.NewTCP(listeners.Config{ID: "tcp", Address: *listen})); err != nil {
		log.Fatal(err)
	}
	if err := server.Serve(); err != nil {
		log.Fatal(err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
	if err := server.Close(); err != nil {
		log.Fatal(err)
	}
}
