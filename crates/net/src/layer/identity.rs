//! Who a client certificate says the client is.
//!
//! The subject is written as OpenSSL does with `-nameopt RFC2253`, because that is what mosquitto
//! takes as user name and what existing password and ACL files hold: last part first, no spaces,
//! special characters escaped (RFC 2253 section 2.4), bytes outside ASCII as `\C3\A4`.

use std::fmt::Write;

use rustls_pki_types::CertificateDer;
use x509_parser::asn1_rs::{Any, Tag};
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate, X509Name};

use super::PeerInfo;

/// Object identifiers that OpenSSL writes by short name; others stay numbers.
const SHORT_NAMES: [(&str, &str); 26] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.15", "businessCategory"),
    ("2.5.4.16", "postalAddress"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.20", "telephoneNumber"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.72", "role"),
    ("2.5.4.97", "organizationIdentifier"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// Fills in common name and subject. A certificate that cannot be parsed gives neither.
pub(super) fn describe(certificate: &CertificateDer<'_>, info: &mut PeerInfo) {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return;
    };
    let subject = certificate.subject();
    info.common_name = subject
        .iter_common_name()
        .next()
        .and_then(|name| text(name.attr_value()))
        .and_then(|name| usable(&name));
    info.subject = usable(&rfc2253(subject));
}

/// A name that can be a user name: with `a\0b` a careless reader could take it for `a`.
pub(super) fn usable(name: &str) -> Option<String> {
    (!name.is_empty() && !name.contains('\0')).then(|| name.to_owned())
}

fn rfc2253(name: &X509Name<'_>) -> String {
    let mut out = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for part in parts.into_iter().rev() {
        let mut separator = if out.is_empty() { "" } else { "," };
        // OpenSSL walks backwards through all attributes, those of one part included.
        let attributes: Vec<_> = part.iter().collect();
        for attribute in attributes.into_iter().rev() {
            out.push_str(separator);
            separator = "+";
            write_attribute(attribute, &mut out);
        }
    }
    out
}

fn write_attribute(attribute: &AttributeTypeAndValue<'_>, out: &mut String) {
    let id = attribute.attr_type().to_id_string();
    let short = SHORT_NAMES.iter().find(|(known, _)| *known == id);
    let value = attribute.attr_value();
    match (short, text(value)) {
        (Some((_, name)), Some(text)) => {
            out.push_str(name);
            out.push('=');
            escape(&text, out);
        }
        (short, _) => {
            out.push_str(short.map_or(id.as_str(), |(_, name)| name));
            out.push_str("=#");
            hex(&der(value), out);
        }
    }
}

fn escape(text: &str, out: &mut String) {
    let last = text.len().saturating_sub(1);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                out.push('\\');
                out.push(byte.into());
            }
            b'#' if at == 0 => out.push_str("\\#"),
            b' ' if at == 0 || at == last => out.push_str("\\ "),
            b' '..=b'~' => out.push(byte.into()),
            _ => {
                out.push('\\');
                hex(&[byte], out);
            }
        }
    }
}

/// The string types that certificates use, as text.
fn text(value: &Any<'_>) -> Option<String> {
    let data = value.data;
    match value.tag() {
        Tag::Utf8String
        | Tag::PrintableString
        | Tag::Ia5String
        | Tag::NumericString
        | Tag::VisibleString => Some(std::str::from_utf8(data).ok()?.to_owned()),
        // Latin 1 in practice, and for OpenSSL.
        Tag::T61String => Some(data.iter().copied().map(char::from).collect()),
        Tag::BmpString => {
            let (units, []) = data.as_chunks::<2>() else {
                return None;
            };
            let units = units.iter().map(|unit| u16::from_be_bytes(*unit));
            char::decode_utf16(units).collect::<Result<_, _>>().ok()
        }
        Tag::UniversalString => {
            let (chars, []) = data.as_chunks::<4>() else {
                return None;
            };
            let chars = chars.iter().map(|unit| u32::from_be_bytes(*unit));
            chars.map(char::from_u32).collect()
        }
        _ => None,
    }
}

/// Tag, length and data again, for values that have no text.
fn der(value: &Any<'_>) -> Vec<u8> {
    let constructed = if value.header.is_constructed() {
        0x20
    } else {
        0
    };
    // Strings in names have low tag numbers; a high one would need more bytes and does not occur.
    let tag = u8::try_from(value.tag().0 & 0x1f).unwrap_or(0);
    let mut der = vec![tag | constructed];
    let length = value.data.len();
    if length < 0x80 {
        der.push(length.to_le_bytes()[0]);
    } else {
        let bytes = length.to_be_bytes();
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let bytes = &bytes[zeros..];
        der.push(0x80 | bytes.len().to_le_bytes()[0]);
        der.extend_from_slice(bytes);
    }
    der.extend_from_slice(value.data);
    der
}

fn hex(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02X}");
    }
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::pem::PemObject;

    use super::*;

    fn described(pem: &[u8]) -> PeerInfo {
        let mut info = PeerInfo::default();
        describe(&CertificateDer::from_pem_slice(pem).unwrap(), &mut info);
        info
    }

    /// The certificate and what OpenSSL prints for it.
    macro_rules! subject {
        ($name:literal) => {
            (
                &include_bytes!(concat!("../../tests/layer/data/subject-", $name, ".pem"))[..],
                include_str!(concat!("../../tests/layer/data/subject-", $name, ".txt")),
            )
        };
    }

    #[test]
    fn subjects_are_written_as_openssl_does() {
        let all = [
            (subject!("plain"), Some("robot-7")),
            (subject!("special"), Some("Jörg 日本")),
            (subject!("multi"), Some("two")),
            (subject!("latin"), Some("Ünit")),
            (subject!("bmp"), Some("日本")),
            (subject!("oid"), Some("x")),
            (subject!("none"), None),
        ];
        for ((pem, openssl), common_name) in all {
            let info = described(pem);
            let openssl = openssl.trim_end_matches('\n');
            assert_eq!(info.subject.as_deref().unwrap_or_default(), openssl);
            assert_eq!(info.common_name.as_deref(), common_name, "{openssl}");
        }
    }

    #[test]
    fn what_is_no_certificate_gives_no_name() {
        let mut info = PeerInfo::default();
        describe(
            &CertificateDer::from(&b"\x30\x03\x02\x01\x01"[..]),
            &mut info,
        );
        assert_eq!(info, PeerInfo::default());
    }

    #[test]
    fn names_that_cannot_be_user_names_are_not_used() {
        assert_eq!(usable(""), None);
        assert_eq!(usable("admin\0.example"), None);
        assert_eq!(usable("robot-7").as_deref(), Some("robot-7"));
    }
}
