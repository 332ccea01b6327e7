// Package wire is what both Go adapters share: the protocol on standard input and output
// (see ../../../README.md), TLS settings, and the loop that serves the requests.
package wire

import (
	"bufio"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// Request is one line of standard input; every operation uses the fields it needs.
type Request struct {
	ID            uint64   `json:"id"`
	Op            string   `json:"op"`
	Conn          string   `json:"conn"`
	Host          string   `json:"host"`
	Port          int      `json:"port"`
	Transport     string   `json:"transport"`
	Version       byte     `json:"version"`
	ClientID      string   `json:"client_id"`
	Username      *string  `json:"username"`
	Password      *string  `json:"password"`
	Clean         bool     `json:"clean"`
	SessionExpiry uint32   `json:"session_expiry"`
	KeepAlive     uint16   `json:"keepalive"`
	CA            string   `json:"ca"`
	Cert          string   `json:"cert"`
	Key           string   `json:"key"`
	Will          *Will    `json:"will"`
	Filters       []Filter `json:"filters"`
	Topic         string   `json:"topic"`
	Payload       []byte   `json:"payload"`
	QoS           byte     `json:"qos"`
	Retain        bool     `json:"retain"`
	Count         int      `json:"count"`
	Window        int      `json:"window"`
	Props         Props    `json:"props"`
}

// Will is the message that the broker publishes for a lost client.
type Will struct {
	Topic   string `json:"topic"`
	Payload string `json:"payload"`
	QoS     byte   `json:"qos"`
	Retain  bool   `json:"retain"`
}

// Filter is a subscription; UNSUBSCRIBE requests name it as a plain string.
type Filter struct {
	Filter            string `json:"filter"`
	QoS               byte   `json:"qos"`
	NoLocal           bool   `json:"no_local"`
	RetainAsPublished bool   `json:"retain_as_published"`
	Identifier        *int   `json:"identifier"`
}

// UnmarshalJSON accepts an object or a string.
func (f *Filter) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &f.Filter)
	}
	type plain Filter
	return json.Unmarshal(data, (*plain)(f))
}

// Props are the MQTT 5 PUBLISH properties.
type Props struct {
	User          [][2]string `json:"user,omitempty"`
	Expiry        *uint32     `json:"expiry,omitempty"`
	ContentType   string      `json:"content_type,omitempty"`
	Format        *byte       `json:"format,omitempty"`
	TopicAlias    *uint16     `json:"topic_alias,omitempty"`
	ResponseTopic string      `json:"response_topic,omitempty"`
	Correlation   []byte      `json:"correlation,omitempty"`
	Identifiers   []int       `json:"identifiers,omitempty"`
}

var output sync.Mutex

// Say writes one line of output.
func Say(fields map[string]any) {
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

// Fail answers a request with an error.
func Fail(id uint64, err error) {
	Say(map[string]any{"id": id, "error": err.Error()})
}

// Message reports a received application message.
func Message(conn, topic string, payload []byte, qos byte, retain, dup bool, props Props) {
	sum := sha256.Sum256(payload)
	event := map[string]any{
		"event": "message", "conn": conn, "topic": topic, "size": len(payload),
		"sha256": hex.EncodeToString(sum[:]), "qos": qos, "retain": retain, "dup": dup,
		"props": props,
	}
	if len(payload) <= 4096 {
		if payload == nil {
			payload = []byte{}
		}
		event["payload"] = payload
	}
	Say(event)
}

// TLS is the client's TLS configuration for a connect request.
func (r *Request) TLS() (*tls.Config, error) {
	pem, err := os.ReadFile(r.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", r.CA)
	}
	config := &tls.Config{RootCAs: roots, ServerName: r.Host}
	if r.Cert != "" {
		pair, err := tls.LoadX509KeyPair(r.Cert, r.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Connection is one MQTT connection of the client under test.
type Connection interface {
	Serve(*Request)
}

// Run reads requests until the input ends. Requests of one connection are served in order,
// each connection by a goroutine of its own.
func Run(connect func(*Request) Connection) {
	queues := map[string]chan *Request{}
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(make([]byte, 0, 1<<16), 1<<26)
	for input.Scan() {
		request := new(Request)
		if err := json.Unmarshal(input.Bytes(), request); err != nil {
			Fail(request.ID, err)
			continue
		}
		queue := queues[request.Conn]
		if request.Op == "connect" {
			queue = make(chan *Request, 64)
			queues[request.Conn] = queue
			go serve(connect, queue)
		}
		if queue == nil {
			Fail(request.ID, fmt.Errorf("no connection %s", request.Conn))
			continue
		}
		queue <- request
		if request.Op == "disconnect" {
			close(queue)
			delete(queues, request.Conn)
		}
	}
}

func serve(connect func(*Request) Connection, queue chan *Request) {
	connection := connect(<-queue)
	for request := range queue {
		if connection == nil {
			Fail(request.ID, fmt.Errorf("not connected"))
			continue
		}
		connection.Serve(request)
	}
}
