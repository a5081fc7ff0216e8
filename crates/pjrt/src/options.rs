//! Named values: client options, plugin attributes, cost properties.

use std::ffi::c_char;
use std::marker::PhantomData;

use crate::sys::*;

#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    Str(String),
    Int(i64),
    IntList(Vec<i64>),
    Float(f32),
    Bool(bool),
}

impl From<&str> for OptionValue {
    fn from(value: &str) -> Self {
        OptionValue::Str(value.to_owned())
    }
}

impl From<i64> for OptionValue {
    fn from(value: i64) -> Self {
        OptionValue::Int(value)
    }
}

impl From<bool> for OptionValue {
    fn from(value: bool) -> Self {
        OptionValue::Bool(value)
    }
}

/// C view of a list of options, valid while the options are borrowed.
pub(crate) struct NamedValues<'a> {
    values: Vec<PJRT_NamedValue>,
    _options: PhantomData<&'a OptionValue>,
}

impl<'a> NamedValues<'a> {
    pub(crate) fn new(options: &'a [(&'a str, OptionValue)]) -> Self {
        let values = options
            .iter()
            .map(|(name, value)| {
                let (type_, union, len) = match value {
                    OptionValue::Str(s) => (
                        NAMED_VALUE_STRING,
                        PJRT_NamedValue_Union { string_value: s.as_ptr().cast() },
                        s.len(),
                    ),
                    OptionValue::Int(i) => (NAMED_VALUE_INT64, PJRT_NamedValue_Union { int64_value: *i }, 1),
                    OptionValue::IntList(l) => (
                        NAMED_VALUE_INT64_LIST,
                        PJRT_NamedValue_Union { int64_array_value: l.as_ptr() },
                        l.len(),
                    ),
                    OptionValue::Float(f) => {
                        (NAMED_VALUE_FLOAT, PJRT_NamedValue_Union { float_value: *f }, 1)
                    }
                    OptionValue::Bool(b) => (NAMED_VALUE_BOOL, PJRT_NamedValue_Union { bool_value: *b }, 1),
                };
                PJRT_NamedValue {
                    name: name.as_ptr().cast(),
                    name_size: name.len(),
                    type_,
                    value: union,
                    value_size: len,
                    ..PJRT_NamedValue::new()
                }
            })
            .collect();
        NamedValues { values, _options: PhantomData }
    }

    pub(crate) fn as_ptr(&self) -> *const PJRT_NamedValue {
        self.values.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}

/// Copies a list that the plugin returned. Values of an unknown kind are left out.
///
/// # Safety
/// `values` must point to `len` named values of the plugin, or `len` must be 0.
pub(crate) unsafe fn read_named_values(
    values: *const PJRT_NamedValue,
    len: usize,
) -> Vec<(String, OptionValue)> {
    let mut out = Vec::with_capacity(len);
    for i in 0..len {
        // SAFETY: `i` is in bounds. The plugin's own struct_size gives the stride: an array element of a later
        // API may be longer than ours.
        let value = unsafe {
            let stride = (*values).struct_size.max(PJRT_NamedValue::SIZE);
            &*values.byte_add(i * stride)
        };
        // SAFETY: the tag says which member of the union is live; strings and lists have `value_size` elements.
        let parsed = unsafe {
            match value.type_ {
                NAMED_VALUE_STRING => {
                    OptionValue::Str(read_string(value.value.string_value, value.value_size))
                }
                NAMED_VALUE_INT64 => OptionValue::Int(value.value.int64_value),
                NAMED_VALUE_INT64_LIST => {
                    OptionValue::IntList(read_slice(value.value.int64_array_value, value.value_size).to_vec())
                }
                NAMED_VALUE_FLOAT => OptionValue::Float(value.value.float_value),
                NAMED_VALUE_BOOL => OptionValue::Bool(value.value.bool_value),
                _ => continue,
            }
        };
        // SAFETY: the plugin's name, `name_size` bytes long.
        out.push((unsafe { read_string(value.name, value.name_size) }, parsed));
    }
    out
}

/// # Safety
/// `data` must point to `len` bytes, or be null.
pub(crate) unsafe fn read_string(data: *const c_char, len: usize) -> String {
    // SAFETY: passed on to the caller.
    String::from_utf8_lossy(unsafe { read_slice(data.cast::<u8>(), len) }).into_owned()
}

/// # Safety
/// `data` must point to `len` values that outlive `'a`, or be null.
pub(crate) unsafe fn read_slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: not null, and the caller vouches for the length.
    unsafe { std::slice::from_raw_parts(data, len) }
}
