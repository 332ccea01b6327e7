//! Text (section 1.5.4): what is not well-formed UTF-8, or contains U+0000,
//! is refused wherever text occurs.

/// Ill-formed UTF-8 of every kind, and U+0000.
pub(crate) const ILL_FORMED: &[&[u8]] = &[
    // U+0000.
    b"a\0b",
    // The first and last surrogate, and a pair of them (CESU-8).
    &[b'a', 0xED, 0xA0, 0x80],
    &[b'a', 0xED, 0xBF, 0xBF],
    &[b'a', 0xED, 0xA0, 0xBD, 0xED, 0xB8, 0x80],
    // A continuation byte alone, and a sequence cut short.
    &[b'a', 0x80],
    &[b'a', 0xE2, 0x82],
    // Overlong forms of U+002F and U+0000.
    &[b'a', 0xC0, 0xAF],
    &[b'a', 0xC0, 0x80],
    // Beyond U+10FFFF, and bytes that never occur.
    &[b'a', 0xF4, 0x90, 0x80, 0x80],
    &[b'a', 0xFE],
];
