// Adapter for Eclipse Paho's MQTT 5 client, paho.golang, with WebSocket by gorilla/websocket
// (as its own autopaho does it).
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/gorilla/websocket"

	"punctual/interop/wire"
)

const library = "paho.golang"

// The runner's own deadlines are shorter.
const patience = time.Minute

type connection struct {
	name   string
	client *paho.Client
	closed sync.Once
}

func main() {
	wire.Say(map[string]any{
		"hello":     library,
		"keepalive": 6,
		"cannot":    map[string]string{},
	})
	wire.Run(connect)
}

func connect(r *wire.Request) wire.Connection {
	network, err := dial(r)
	if err != nil {
		wire.Fail(r.ID, err)
		return nil
	}
	c := &connection{name: r.Conn}
	c.client = paho.NewClient(paho.ClientConfig{
		Conn:          network,
		PacketTimeout: patience,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){
			func(received paho.PublishReceived) (bool, error) {
				p := received.Packet
				wire.Message(c.name, p.Topic, p.Payload, p.QoS, p.Retain, p.Duplicate(), propsOf(p))
				return true, nil
			},
		},
		OnServerDisconnect: func(d *paho.Disconnect) { c.end(int(d.ReasonCode)) },
		OnClientError:      func(error) { c.end(nil) },
	})
	request := &paho.Connect{
		ClientID:   r.ClientID,
		KeepAlive:  r.KeepAlive,
		CleanStart: r.Clean,
		Properties: &paho.ConnectProperties{
			SessionExpiryInterval: &r.SessionExpiry, RequestProblemInfo: true,
		},
	}
	if r.Username != nil {
		request.UsernameFlag, request.PasswordFlag = true, true
		request.Username, request.Password = *r.Username, []byte(*r.Password)
	}
	if r.Will != nil {
		request.WillMessage = &paho.WillMessage{
			Topic: r.Will.Topic, Payload: []byte(r.Will.Payload), QoS: r.Will.QoS,
			Retain: r.Will.Retain,
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	accepted, err := c.client.Connect(ctx, request)
	if accepted == nil || (err != nil && accepted.ReasonCode == 0) {
		wire.Fail(r.ID, err)
		return nil
	}
	wire.Say(map[string]any{
		"id": r.ID, "code": accepted.ReasonCode, "session_present": accepted.SessionPresent,
		"assigned_id": accepted.Properties.AssignedClientID,
	})
	return c
}

// end reports the end of the connection once: a DISCONNECT comes with a network error.
func (c *connection) end(code any) {
	c.closed.Do(func() {
		wire.Say(map[string]any{"event": "closed", "conn": c.name, "code": code})
	})
}

func (c *connection) Serve(r *wire.Request) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer := map[string]any{"id": r.ID}
	var err error
	switch r.Op {
	case "subscribe":
		err = c.subscribe(ctx, r, answer)
	case "unsubscribe":
		filters := []string{}
		for _, f := range r.Filters {
			filters = append(filters, f.Filter)
		}
		var done *paho.Unsuback
		done, err = c.client.Unsubscribe(ctx, &paho.Unsubscribe{Topics: filters})
		if done != nil {
			answer["codes"], err = numbers(done.Reasons), nil
		}
	case "publish":
		var done *paho.PublishResponse
		done, err = c.client.Publish(ctx, publishOf(r, r.Topic, r.Payload))
		if done != nil && r.QoS > 0 {
			answer["code"], err = done.ReasonCode, nil
		}
	case "burst":
		err = c.burst(ctx, r)
	case "disconnect":
		c.closed.Do(func() {})
		err = c.client.Disconnect(&paho.Disconnect{})
	default:
		err = fmt.Errorf("unknown request %s", r.Op)
	}
	if err != nil {
		wire.Fail(r.ID, err)
		return
	}
	wire.Say(answer)
}

func (c *connection) subscribe(ctx context.Context, r *wire.Request, answer map[string]any) error {
	request := &paho.Subscribe{}
	for _, f := range r.Filters {
		request.Subscriptions = append(request.Subscriptions, paho.SubscribeOptions{
			Topic: f.Filter, QoS: f.QoS, NoLocal: f.NoLocal, RetainAsPublished: f.RetainAsPublished,
		})
		if f.Identifier != nil {
			request.Properties = &paho.SubscribeProperties{SubscriptionIdentifier: f.Identifier}
		}
	}
	done, err := c.client.Subscribe(ctx, request)
	if done == nil {
		return err
	}
	answer["codes"] = numbers(done.Reasons)
	return nil
}

// burst sends in order without waiting; the library keeps to the server's Receive Maximum.
// Only the last message's handshake is awaited, the library tells of no other.
func (c *connection) burst(ctx context.Context, r *wire.Request) error {
	for i := range r.Count {
		topic := r.Topic
		if i > 0 && r.Props.TopicAlias != nil {
			topic = ""
		}
		options := paho.PublishOptions{Method: paho.PublishMethod_AsyncSend}
		if i == r.Count-1 {
			options.Method = paho.PublishMethod_Blocking
		}
		message := publishOf(r, topic, []byte(strconv.Itoa(i)))
		if _, err := c.client.PublishWithOptions(ctx, message, options); err != nil {
			return err
		}
	}
	return nil
}

func publishOf(r *wire.Request, topic string, payload []byte) *paho.Publish {
	p := r.Props
	properties := &paho.PublishProperties{
		CorrelationData: p.Correlation, ContentType: p.ContentType, ResponseTopic: p.ResponseTopic,
		PayloadFormat: p.Format, MessageExpiry: p.Expiry, TopicAlias: p.TopicAlias,
	}
	for _, pair := range p.User {
		properties.User = append(properties.User, paho.UserProperty{Key: pair[0], Value: pair[1]})
	}
	return &paho.Publish{
		Topic: topic, QoS: r.QoS, Retain: r.Retain, Payload: payload, Properties: properties,
	}
}

func propsOf(p *paho.Publish) wire.Props {
	props := wire.Props{
		Expiry: p.Properties.MessageExpiry, ContentType: p.Properties.ContentType,
		Format: p.Properties.PayloadFormat, ResponseTopic: p.Properties.ResponseTopic,
		Correlation: p.Properties.CorrelationData, TopicAlias: p.Properties.TopicAlias,
	}
	for _, pair := range p.Properties.User {
		props.User = append(props.User, [2]string{pair.Key, pair.Value})
	}
	if p.Properties.SubscriptionIdentifier != nil {
		props.Identifiers = []int{*p.Properties.SubscriptionIdentifier}
	}
	return props
}

// numbers keeps JSON from writing a byte slice as Base64.
func numbers(codes []byte) []int {
	list := make([]int, len(codes))
	for i, code := range codes {
		list[i] = int(code)
	}
	return list
}

func dial(r *wire.Request) (net.Conn, error) {
	address := net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
	var config *tls.Config
	if r.Transport == "tls" || r.Transport == "wss" {
		var err error
		if config, err = r.TLS(); err != nil {
			return nil, err
		}
	}
	switch r.Transport {
	case "tcp":
		return net.DialTimeout("tcp", address, patience)
	case "tls":
		conn, err := tls.Dial("tcp", address, config)
		if err != nil {
			return nil, err
		}
		return packets.NewThreadSafeConn(conn), nil
	default:
		dialer := websocket.Dialer{TLSClientConfig: config, Subprotocols: []string{"mqtt"}}
		conn, response, err := dialer.Dial(r.Transport+"://"+address+"/mqtt", http.Header{})
		if err != nil {
			return nil, err
		}
		if chosen := response.Header.Get("Sec-WebSocket-Protocol"); chosen != "mqtt" {
			conn.Close()
			return nil, fmt.Errorf("the server chose the WebSocket subprotocol %q", chosen)
		}
		return packets.NewThreadSafeConn(&stream{Conn: conn}), nil
	}
}

// stream makes a byte stream of binary WebSocket messages.
type stream struct {
	*websocket.Conn
	message io.Reader
}

func (s *stream) Read(p []byte) (int, error) {
	for {
		if s.message == nil {
			kind, message, err := s.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != websocket.BinaryMessage {
				return 0, fmt.Errorf("a WebSocket message of type %d", kind)
			}
			s.message = message
		}
		n, err := s.message.Read(p)
		if err != io.EOF {
			return n, err
		}
		s.message = nil
		if n > 0 {
			return n, nil
		}
	}
}

func (s *stream) Write(p []byte) (int, error) {
	if err := s.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s *stream) SetDeadline(t time.Time) error {
	if err := s.SetReadDeadline(t); err != nil {
		return err
	}
	return s.SetWriteDeadline(t)
}
