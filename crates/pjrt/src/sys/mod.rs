//! The PJRT C ABI, written down by hand for the methods this crate calls (`pjrt_c_api.h`, major version 0).
//!
//! No code is generated at build time; `tests/layout.rs` compares every size and offset with a table that was
//! derived from the C header.

#![allow(non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_void};
use std::mem::{MaybeUninit, offset_of, size_of};

/// Name, offset and size of each field of a C struct.
pub type Layout = (&'static str, usize, &'static [(&'static str, usize, usize)]);

/// A struct of the C API: it begins with `struct_size` and is valid when zeroed.
///
/// # Safety
/// Only for `#[repr(C)]` structs whose first field is `struct_size: usize` and for which all zeroes is a value.
pub unsafe trait AbiStruct: Sized {
    /// What C calls `STRUCT_SIZE`: the end of the last field, without tail padding.
    const SIZE: usize;

    fn new() -> Self {
        let mut value = MaybeUninit::<Self>::zeroed();
        // SAFETY: all zeroes is a value of `Self`, whose first field is `struct_size: usize`.
        unsafe {
            value.as_mut_ptr().cast::<usize>().write(Self::SIZE);
            value.assume_init()
        }
    }
}

/// The arguments of one method, and where its pointer lies in the table.
///
/// # Safety
/// `OFFSET` must be the offset in `PJRT_Api` of a function that takes `*mut Self` and returns `*mut PJRT_Error`.
pub unsafe trait Method: AbiStruct {
    const NAME: &'static str;
    const OFFSET: usize;
}

pub type MethodFn<A> = unsafe extern "C" fn(*mut A) -> *mut PJRT_Error;

macro_rules! abi {
    ($($name:ident { $($field:ident : $ty:ty),* $(,)? })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                pub struct_size: usize,
                pub extension_start: *mut PJRT_Extension_Base,
                $(pub $field: $ty,)*
            }
            // SAFETY: repr(C), starts with struct_size; integers, pointers, bools and options of function
            // pointers are all valid when zero.
            unsafe impl AbiStruct for $name {
                const SIZE: usize = {
                    let fields: &[usize] = &[16, $(offset_of!($name, $field) + size_of::<$ty>(),)*];
                    fields[fields.len() - 1]
                };
            }
        )*
        pub const STRUCTS: &[Layout] = &[
            $((stringify!($name), <$name as AbiStruct>::SIZE, &[
                ("struct_size", 0, 8),
                ("extension_start", 8, 8),
                $((stringify!($field), offset_of!($name, $field), size_of::<$ty>()),)*
            ]),)*
        ];
    };
}

macro_rules! api {
    (@type call $args:ident) => { Option<MethodFn<$args>> };
    (@type void $args:ident) => { Option<unsafe extern "C" fn(*mut $args)> };
    (@type slot) => { *const std::ffi::c_void };
    (@impl call $name:ident $args:ident) => {
        // SAFETY: the slot of this name takes these arguments (layout test).
        unsafe impl Method for $args {
            const NAME: &'static str = concat!("PJRT_", stringify!($name));
            const OFFSET: usize = std::mem::offset_of!(PJRT_Api, $name);
        }
    };
    (@impl void $name:ident $args:ident) => {};
    (@impl slot $name:ident) => {};
    ($($kind:ident $name:ident $(($args:ident))?;)*) => {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct PJRT_Api {
            pub struct_size: usize,
            pub extension_start: *mut PJRT_Extension_Base,
            pub pjrt_api_version: PJRT_Api_Version,
            $(pub $name: api!(@type $kind $($args)?),)*
        }
        $(api!(@impl $kind $name $($args)?);)*
        pub const METHODS: &[(&str, usize)] = &[
            $((concat!("PJRT_", stringify!($name)), std::mem::offset_of!(PJRT_Api, $name)),)*
        ];
    };
}

mod api;
mod structs;

pub use api::*;
pub use structs::*;

macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] pub struct $name { _private: [u8; 0] })* };
}

opaque! {
    PJRT_Error PJRT_Event PJRT_Client PJRT_Device PJRT_DeviceDescription PJRT_Memory PJRT_Executable
    PJRT_LoadedExecutable PJRT_Buffer PJRT_TopologyDescription PJRT_ExecuteContext PJRT_SerializedExecutable
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PJRT_Extension_Base {
    pub struct_size: usize,
    pub type_: u32,
    pub next: *mut PJRT_Extension_Base,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union PJRT_NamedValue_Union {
    pub string_value: *const c_char,
    pub int64_value: i64,
    pub int64_array_value: *const i64,
    pub float_value: f32,
    pub bool_value: bool,
}

/// Only the tiled form is used; it is also the larger one.
#[repr(C)]
#[derive(Clone, Copy)]
pub union PJRT_Buffer_MemoryLayout_Union {
    pub tiled: PJRT_Buffer_MemoryLayout_Tiled,
}

pub type PJRT_Error_Code = u32;
pub type PJRT_Buffer_Type = u32;

pub type PJRT_NamedValue_Type = u32;
pub const NAMED_VALUE_STRING: PJRT_NamedValue_Type = 0;
pub const NAMED_VALUE_INT64: PJRT_NamedValue_Type = 1;
pub const NAMED_VALUE_INT64_LIST: PJRT_NamedValue_Type = 2;
pub const NAMED_VALUE_FLOAT: PJRT_NamedValue_Type = 3;
pub const NAMED_VALUE_BOOL: PJRT_NamedValue_Type = 4;

pub type PJRT_HostBufferSemantics = u32;
pub const IMMUTABLE_ONLY_DURING_CALL: PJRT_HostBufferSemantics = 0;
pub const IMMUTABLE_UNTIL_TRANSFER_COMPLETES: PJRT_HostBufferSemantics = 1;
pub const IMMUTABLE_ZERO_COPY: PJRT_HostBufferSemantics = 2;

pub type PJRT_Buffer_MemoryLayout_Type = u32;
pub const MEMORY_LAYOUT_TILED: PJRT_Buffer_MemoryLayout_Type = 0;

pub type GetPjrtApi = unsafe extern "C" fn() -> *const PJRT_Api;

const _: () = assert!(size_of::<usize>() == 8 && size_of::<*const c_void>() == 8, "PJRT plugins are 64-bit");
