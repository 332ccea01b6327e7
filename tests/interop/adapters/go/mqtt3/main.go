// Adapter for Eclipse Paho's MQTT 3.1.1 client, paho.mqtt.golang.
//
// Reconnecting is off: a lost connection stays lost and is reported.
package main

import (
	"fmt"
	"strconv"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/eclipse/paho.mqtt.golang/packets"

	"punctual/interop/wire"
)

const library = "paho.mqtt.golang"

// The runner's own deadlines are shorter.
const patience = time.Minute

var schemes = map[string]string{"tcp": "tcp", "tls": "ssl", "ws": "ws", "wss": "wss"}

type connection struct {
	name   string
	client mqtt.Client
	window int
}

func main() {
	wire.Say(map[string]any{
		"hello": library,
		// The ping timer looks at the clock in whole seconds.
		"keepalive": 6,
		"cannot":    map[string]string{"close-code": "MQTT 3.1.1 has no server DISCONNECT"},
	})
	wire.Run(connect)
}

func connect(r *wire.Request) wire.Connection {
	c := &connection{name: r.Conn, window: r.Window}
	options := mqtt.NewClientOptions()
	path := ""
	if r.Transport == "ws" || r.Transport == "wss" {
		path = "/mqtt"
	}
	options.AddBroker(fmt.Sprintf("%s://%s:%d%s", schemes[r.Transport], r.Host, r.Port, path))
	options.SetClientID(r.ClientID)
	options.SetProtocolVersion(4)
	options.SetCleanSession(r.Clean)
	options.SetKeepAlive(time.Duration(r.KeepAlive) * time.Second)
	options.SetAutoReconnect(false)
	options.SetConnectRetry(false)
	options.SetOrderMatters(true)
	if r.Username != nil {
		options.SetUsername(*r.Username)
		options.SetPassword(*r.Password)
	}
	if r.Will != nil {
		options.SetWill(r.Will.Topic, r.Will.Payload, r.Will.QoS, r.Will.Retain)
	}
	if r.Transport == "tls" || r.Transport == "wss" {
		config, err := r.TLS()
		if err != nil {
			wire.Fail(r.ID, err)
			return nil
		}
		options.SetTLSConfig(config)
	}
	options.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
		wire.Message(c.name, m.Topic(), m.Payload(), m.Qos(), m.Retained(), m.Duplicate(), wire.Props{})
	})
	options.SetConnectionLostHandler(func(mqtt.Client, error) {
		wire.Say(map[string]any{"event": "closed", "conn": c.name})
	})
	c.client = mqtt.NewClient(options)
	token := c.client.Connect().(*mqtt.ConnectToken)
	token.WaitTimeout(patience)
	code := token.ReturnCode()
	// Codes from 0xFE up are the library's own, for network errors.
	if token.Error() != nil && (code == packets.Accepted || code >= packets.ErrNetworkError) {
		wire.Fail(r.ID, token.Error())
		return nil
	}
	wire.Say(map[string]any{"id": r.ID, "code": code, "session_present": token.SessionPresent()})
	return c
}

func (c *connection) Serve(r *wire.Request) {
	var err error
	answer := map[string]any{"id": r.ID}
	switch r.Op {
	case "subscribe":
		filters := map[string]byte{}
		for _, f := range r.Filters {
			filters[f.Filter] = f.QoS
		}
		// Without a callback messages go to the default handler.
		token := c.client.SubscribeMultiple(filters, nil).(*mqtt.SubscribeToken)
		err = wait(token)
		granted := token.Result()
		codes := []int{}
		for _, f := range r.Filters {
			codes = append(codes, int(granted[f.Filter]))
		}
		answer["codes"] = codes
	case "unsubscribe":
		filters := []string{}
		for _, f := range r.Filters {
			filters = append(filters, f.Filter)
		}
		err = wait(c.client.Unsubscribe(filters...))
	case "publish":
		err = wait(c.client.Publish(r.Topic, r.QoS, r.Retain, r.Payload))
	case "burst":
		// The library itself knows no bound on messages in flight.
		tokens := []mqtt.Token{}
		for i := range r.Count {
			if c.window > 0 && i >= c.window && err == nil {
				err = wait(tokens[i-c.window])
			}
			tokens = append(tokens, c.client.Publish(r.Topic, r.QoS, false, strconv.Itoa(i)))
		}
		for _, token := range tokens {
			if err == nil {
				err = wait(token)
			}
		}
	case "disconnect":
		c.client.Disconnect(250)
	default:
		err = fmt.Errorf("unknown request %s", r.Op)
	}
	if err != nil {
		wire.Fail(r.ID, err)
		return
	}
	wire.Say(answer)
}

func wait(token mqtt.Token) error {
	if !token.WaitTimeout(patience) {
		return fmt.Errorf("not acknowledged")
	}
	return token.Error()
}
