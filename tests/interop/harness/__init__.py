"""The interoperability suite: foreign MQTT clients against one broker."""
