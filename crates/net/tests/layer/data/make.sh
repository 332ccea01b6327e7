#!/bin/sh
# Makes the files beside it: kinds of keys and subjects that the tests cannot make themselves.
# Needs OpenSSL 3. The keys guard nothing; the certificates are valid for 100 years.
set -eu
cd "$(dirname "$0")"

certificate() {
    openssl req -x509 -new -key "$1.key" -subj /CN=localhost -days 36500 -out "$1.pem" \
        -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:localhost
}
openssl genrsa -traditional -out pkcs1.key 2048
certificate pkcs1
openssl ecparam -name prime256v1 -genkey -noout -out sec1.key
certificate sec1
openssl pkcs8 -topk8 -in sec1.key -passout pass:secret -out encrypted.key
openssl ec -in sec1.key -aes128 -passout pass:secret -out encrypted-old.key

# Subjects, and beside each what OpenSSL makes of it.
subject() {
    name=$1
    shift
    openssl req -x509 -new -key sec1.key -days 36500 -out "subject-$name.pem" "$@"
    openssl x509 -in "subject-$name.pem" -noout -subject -nameopt RFC2253 |
        sed 's/^subject=//' > "subject-$name.txt"
}
subject plain -subj '/C=DE/ST=Bayern/L=Passau/O=Factory/OU=Line 4/CN=robot-7'
subject multi -multivalue-rdn -subj '/DC=org/DC=example/UID=17+CN=two+O=parts/emailAddress=a@b.example'
subject none -subj /

# The rest needs a configuration: kind of string, further settings, lines of the subject.
configured() {
    name=$1 mask=$2 settings=$3
    shift 3
    {
        printf '%s\n' "$settings" '[req]' "string_mask=$mask" 'prompt=no' 'utf8=yes' \
            'distinguished_name=dn' '[dn]' "$@"
    } > subject.cnf
    subject "$name" -config subject.cnf
    rm subject.cnf
}
# The digit before a name is not part of it: it allows the same name twice.
configured special utf8only '' 'O=A, B \+ \"C\" \\ <D>; E=F' '1.OU=\#1' '2.OU=" both "' 'CN=Jörg 日本'
configured latin MASK:4 '' 'O=Café' 'CN=Ünit'
configured bmp MASK:2048 '' 'CN=日本'
configured oid default 'oid_section=oids
[oids]
factoryId=1.2.3.4.5' 'businessCategory=plant' 'organizationIdentifier=VAT' 'factoryId=x y' 'CN=x'
