"""paho as it should be, for tests of what a broker doubles."""

import paho.mqtt.client as paho


class Paho(paho.Client):
    """paho 2.2.0 forgets, when an attempt to reconnect fails, that a QoS 2 message has got to
    PUBREL: after the next one it publishes it anew, without DUP, which no broker can tell from a
    new message [MQTT-4.3.3-6]. Here it remembers.
    """

    def _messages_reconnect_reset_out(self):
        for message in self._out_messages.values():
            if message.qos == 2 and message.state == paho.mqtt_ms_resend_pubrel:
                message.state = paho.mqtt_ms_wait_for_pubcomp
        super()._messages_reconnect_reset_out()
