//! The fields of protocol buffers. SentencePiece files have ten that count here: a crate for protocol buffers
//! would bring a compiler for schemas, or derive macros, for more code than this.

/// A field of a message, without its number.
pub(super) enum Field<'a> {
    Integer(u64),
    Fixed32(u32),
    /// A string, bytes or a message.
    Bytes(&'a [u8]),
    /// Eight bytes.
    Other,
}

/// The fields of a message with their numbers. An error says what is malformed, and nothing follows it.
pub(super) fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Result<(u64, Field<'_>), String>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let next = field(&mut bytes);
        if next.is_err() {
            bytes = &[];
        }
        Some(next)
    })
}

/// Takes a field from the front of a message.
fn field<'a>(bytes: &mut &'a [u8]) -> Result<(u64, Field<'a>), String> {
    let tag = varint(bytes)?;
    let number = tag >> 3;
    let field = match tag & 7 {
        0 => Field::Integer(varint(bytes)?),
        1 => {
            take(bytes, 8)?;
            Field::Other
        }
        2 => {
            let length = varint(bytes)?;
            Field::Bytes(take(bytes, length)?)
        }
        5 => match bytes.split_first_chunk() {
            Some((taken, rest)) => {
                *bytes = rest;
                Field::Fixed32(u32::from_le_bytes(*taken))
            }
            None => return Err("it ends within a number".into()),
        },
        other => return Err(format!("a field has the unknown wire type {other}")),
    };
    if number == 0 {
        return Err("a field has the number 0".into());
    }
    Ok((number, field))
}

/// Takes bytes from the front of a message.
fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8], String> {
    let split = usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length));
    let Some((taken, rest)) = split else {
        return Err(format!("a field of {length} bytes has only {}", bytes.len()));
    };
    *bytes = rest;
    Ok(taken)
}

/// Takes an integer from the front of a message: seven bits a byte, the lowest ones first.
fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else {
            return Err("it ends within an integer".into());
        };
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("an integer has more than 64 bits".into())
}
