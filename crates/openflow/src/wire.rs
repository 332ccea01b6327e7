//! How values lie in a message: big-endian, padded with zeros that nobody reads.
//!
//! Structures of the specification are declared once, with [`layout!`], [`codes!`] and
//! [`numbers!`]; both directions come from the declaration. Invariant: what [`Wire::get`] takes
//! off a reader is what [`Wire::put`] writes for the result, padding aside.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::DecodeError;

pub(crate) type Result<T> = std::result::Result<T, DecodeError>;

/// A value with a representation in messages.
pub(crate) trait Wire: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);

    /// Takes it off the reader.
    fn get(from: &mut Reader<'_>) -> Result<Self>;

    /// Appends a list without a count.
    fn put_all(list: &[Self], out: &mut Vec<u8>) {
        for item in list {
            item.put(out);
        }
    }

    /// Takes all that is left.
    fn get_all(from: &mut Reader<'_>) -> Result<Vec<Self>> {
        let mut list = Vec::new();
        while !from.is_empty() {
            list.push(Self::get(from)?);
        }
        Ok(list)
    }
}

/// Bytes of a message that are still to be read, and the name of what they are part of.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, what }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is at fault: a length that does not fit.
    pub(crate) fn bad_length(&self) -> DecodeError {
        DecodeError::Length(self.what)
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (head, tail) = self
            .bytes
            .split_at_checked(length)
            .ok_or(DecodeError::Length(self.what))?;
        self.bytes = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, tail) = self
            .bytes
            .split_first_chunk()
            .ok_or(DecodeError::Length(self.what))?;
        self.bytes = tail;
        Ok(*head)
    }

    /// The next bytes without taking them.
    pub(crate) fn peek<const N: usize>(&self) -> Result<[u8; N]> {
        let mut ahead = *self;
        ahead.array()
    }

    /// Takes padding, of whatever value.
    pub(crate) fn skip(&mut self, length: usize) -> Result<()> {
        self.take(length).map(drop)
    }

    /// The next `length` bytes as a part called `what`.
    pub(crate) fn part(&mut self, length: usize, what: &'static str) -> Result<Reader<'a>> {
        Ok(Reader::new(self.take(length)?, what))
    }

    /// All that is left, as bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    pub(crate) fn get<T: Wire>(&mut self) -> Result<T> {
        T::get(self)
    }

    /// Nothing may be left.
    pub(crate) fn end(&self) -> Result<()> {
        match self.bytes {
            [] => Ok(()),
            _ => Err(DecodeError::Length(self.what)),
        }
    }
}

/// Appends `length` zeros.
pub(crate) fn pad(out: &mut Vec<u8>, length: usize) {
    out.resize(out.len() + length, 0);
}

/// Bytes that bring `length` to a multiple of eight.
pub(crate) fn to_eight(length: usize) -> usize {
    length.wrapping_neg() % 8
}

/// Writes what `body` does and then the number of its bytes, `at` bytes after its start.
///
/// A length above 65 535 is cut off here and refused by the check of the whole message.
pub(crate) fn sized(out: &mut Vec<u8>, at: usize, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    body(out);
    let length = (out.len() - start) as u16;
    if let Some(place) = out.get_mut(start + at..start + at + 2) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Wire for $t {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn get(from: &mut Reader<'_>) -> Result<Self> {
                from.array().map(Self::from_be_bytes)
            }
        }
    )*};
}
integers!(u16 u32 u64);

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        from.array().map(|[byte]| byte)
    }

    fn put_all(list: &[Self], out: &mut Vec<u8>) {
        out.extend_from_slice(list);
    }

    fn get_all(from: &mut Reader<'_>) -> Result<Vec<Self>> {
        Ok(from.rest().to_vec())
    }
}

impl<const N: usize> Wire for [u32; N] {
    fn put(&self, out: &mut Vec<u8>) {
        u32::put_all(self, out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        let mut all = [0; N];
        for one in &mut all {
            *one = from.get()?;
        }
        Ok(all)
    }
}

impl Wire for Ipv4Addr {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.octets());
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        from.array::<4>().map(Self::from)
    }
}

impl Wire for Ipv6Addr {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.octets());
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        from.array::<16>().map(Self::from)
    }
}

/// As many as there are.
impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        T::put_all(self, out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self> {
        T::get_all(from)
    }
}

/// A structure whose fields follow one another; `[n]` after a type are `n` bytes of padding.
macro_rules! layout {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$about:meta])* pub $field:ident: $type:ty $([$pad:literal])?,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
        }

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(
                    $crate::wire::Wire::put(&self.$field, out);
                    $($crate::wire::pad(out, $pad);)?
                )*
            }

            fn get(from: &mut $crate::wire::Reader<'_>) -> $crate::wire::Result<Self> {
                $(
                    let $field = from.get()?;
                    $(from.skip($pad)?;)?
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}

/// A closed list of codes; `else` is the error for any other.
macro_rules! codes {
    ($(#[$meta:meta])* pub enum $name:ident: $repr:ident else $wrong:ident {
        $($(#[$about:meta])* $variant:ident = $code:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name {
            $($(#[$about])* $variant = $code,)*
        }

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::wire::Wire::put(&(*self as $repr), out);
            }

            fn get(from: &mut $crate::wire::Reader<'_>) -> $crate::wire::Result<Self> {
                let code: $repr = from.get()?;
                match code {
                    $($code => Ok(Self::$variant),)*
                    _ => Err($crate::DecodeError::$wrong(code.into())),
                }
            }
        }
    };
}

/// Bit sets; bits without a name are kept.
macro_rules! bits {
    ($(#$meta:tt)* pub struct $name:ident: $repr:ty {
        $($(#$about:tt)* const $bit:ident = $value:expr;)*
    }) => {
        bitflags::bitflags! {
            $(#$meta)*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
            pub struct $name: $repr {
                $($(#$about)* const $bit = $value;)*
                const _ = !0;
            }
        }

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::wire::Wire::put(&self.bits(), out);
            }

            fn get(from: &mut $crate::wire::Reader<'_>) -> $crate::wire::Result<Self> {
                from.get().map(Self::from_bits_retain)
            }
        }
    };
}

/// Numbers that are not to be mistaken for one another, with their reserved values.
macro_rules! numbers {
    ($($(#[$meta:meta])* pub struct $name:ident($type:ty) {
        $($(#[$about:meta])* $reserved:ident = $value:literal, $said:literal;)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $type);

        impl $name {
            $($(#[$about])* pub const $reserved: Self = Self($value);)*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match *self {
                    $(Self::$reserved => f.pad($said),)*
                    Self(number) => std::fmt::Display::fmt(&number, f),
                }
            }
        }

        impl From<$type> for $name {
            fn from(number: $type) -> Self {
                Self(number)
            }
        }

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::wire::Wire::put(&self.0, out);
            }

            fn get(from: &mut $crate::wire::Reader<'_>) -> $crate::wire::Result<Self> {
                from.get().map(Self)
            }
        }
    )*};
}

pub(crate) use {bits, codes, layout, numbers};
