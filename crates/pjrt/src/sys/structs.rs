//! Argument structs of the PJRT methods that this crate calls.
//!
//! Field order is the ABI. Every struct starts with `struct_size` and `extension_start`, which the macro adds.
//! Fields are those of API 0.114, the newest known: a plugin of an older API reads the prefix that it knows,
//! and a newer plugin refuses a struct that is too short instead of reading past its end.

use std::ffi::{c_char, c_void};

use super::*;

abi! {
    PJRT_Api_Version { major_version: i32, minor_version: i32 }
    PJRT_NamedValue {
        name: *const c_char, name_size: usize, type_: PJRT_NamedValue_Type, value: PJRT_NamedValue_Union,
        value_size: usize,
    }
    PJRT_Program { code: *mut c_char, code_size: usize, format: *const c_char, format_size: usize }
    PJRT_Buffer_MemoryLayout_Tiled {
        minor_to_major: *const i64, minor_to_major_size: usize, tile_dims: *const i64,
        tile_dim_sizes: *const usize, num_tiles: usize,
    }
    PJRT_Buffer_MemoryLayout { value: PJRT_Buffer_MemoryLayout_Union, type_: PJRT_Buffer_MemoryLayout_Type }
    PJRT_ExecuteOptions {
        send_callbacks: *mut *mut c_void, recv_callbacks: *mut *mut c_void, num_send_ops: usize,
        num_recv_ops: usize, launch_id: i32, non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize, context: *mut PJRT_ExecuteContext,
        call_location: *const c_char, num_tasks: usize, task_ids: *mut i32, incarnation_ids: *mut i64,
        multi_slice_config: *mut c_void, use_major_to_minor_data_layout_for_callbacks: bool,
        hlo_output_callbacks: *mut c_void, num_hlo_output_callbacks: usize,
    }
    PJRT_Error_Destroy_Args { error: *mut PJRT_Error }
    PJRT_Error_Message_Args { error: *const PJRT_Error, message: *const c_char, message_size: usize }
    PJRT_Error_GetCode_Args { error: *const PJRT_Error, code: PJRT_Error_Code }
    PJRT_Plugin_Initialize_Args {}
    PJRT_Plugin_Attributes_Args { attributes: *const PJRT_NamedValue, num_attributes: usize }
    PJRT_Event_Destroy_Args { event: *mut PJRT_Event }
    PJRT_Event_IsReady_Args { event: *mut PJRT_Event, is_ready: bool }
    PJRT_Event_Error_Args { event: *mut PJRT_Event }
    PJRT_Event_Await_Args { event: *mut PJRT_Event }
    PJRT_Event_OnReady_Args {
        event: *mut PJRT_Event, callback: Option<unsafe extern "C" fn(*mut PJRT_Error, *mut c_void)>,
        user_arg: *mut c_void,
    }
    PJRT_Client_Create_Args {
        create_options: *const PJRT_NamedValue, num_options: usize, kv_get_callback: *const c_void,
        kv_get_user_arg: *mut c_void, kv_put_callback: *const c_void, kv_put_user_arg: *mut c_void,
        client: *mut PJRT_Client, kv_try_get_callback: *const c_void, kv_try_get_user_arg: *mut c_void,
    }
    PJRT_Client_Destroy_Args { client: *mut PJRT_Client }
    PJRT_Client_PlatformName_Args {
        client: *mut PJRT_Client, platform_name: *const c_char, platform_name_size: usize,
    }
    PJRT_Client_PlatformVersion_Args {
        client: *mut PJRT_Client, platform_version: *const c_char, platform_version_size: usize,
    }
    PJRT_Client_AddressableDevices_Args {
        client: *mut PJRT_Client, addressable_devices: *const *mut PJRT_Device,
        num_addressable_devices: usize,
    }
    PJRT_Client_Compile_Args {
        client: *mut PJRT_Client, program: *const PJRT_Program, compile_options: *const c_char,
        compile_options_size: usize, executable: *mut PJRT_LoadedExecutable,
    }
    PJRT_Client_BufferFromHostBuffer_Args {
        client: *mut PJRT_Client, data: *const c_void, type_: PJRT_Buffer_Type, dims: *const i64,
        num_dims: usize, byte_strides: *const i64, num_byte_strides: usize,
        host_buffer_semantics: PJRT_HostBufferSemantics, device: *mut PJRT_Device, memory: *mut PJRT_Memory,
        device_layout: *mut PJRT_Buffer_MemoryLayout, done_with_host_buffer: *mut PJRT_Event,
        buffer: *mut PJRT_Buffer,
    }
    PJRT_Client_TopologyDescription_Args {
        client: *mut PJRT_Client, topology: *mut PJRT_TopologyDescription,
    }
    PJRT_DeviceDescription_Id_Args { device_description: *mut PJRT_DeviceDescription, id: i32 }
    PJRT_DeviceDescription_Kind_Args {
        device_description: *mut PJRT_DeviceDescription, device_kind: *const c_char,
        device_kind_size: usize,
    }
    PJRT_DeviceDescription_DebugString_Args {
        device_description: *mut PJRT_DeviceDescription, debug_string: *const c_char,
        debug_string_size: usize,
    }
    PJRT_DeviceDescription_Attributes_Args {
        device_description: *mut PJRT_DeviceDescription, num_attributes: usize,
        attributes: *const PJRT_NamedValue,
    }
    PJRT_Device_GetDescription_Args {
        device: *mut PJRT_Device, device_description: *mut PJRT_DeviceDescription,
    }
    PJRT_Device_LocalHardwareId_Args { device: *mut PJRT_Device, local_hardware_id: i32 }
    PJRT_Device_MemoryStats_Args {
        device: *mut PJRT_Device, bytes_in_use: i64, peak_bytes_in_use: i64, peak_bytes_in_use_is_set: bool,
        num_allocs: i64, num_allocs_is_set: bool, largest_alloc_size: i64, largest_alloc_size_is_set: bool,
        bytes_limit: i64, bytes_limit_is_set: bool, bytes_reserved: i64, bytes_reserved_is_set: bool,
        peak_bytes_reserved: i64, peak_bytes_reserved_is_set: bool, bytes_reservable_limit: i64,
        bytes_reservable_limit_is_set: bool, largest_free_block_bytes: i64,
        largest_free_block_bytes_is_set: bool, pool_bytes: i64, pool_bytes_is_set: bool,
        peak_pool_bytes: i64, peak_pool_bytes_is_set: bool, peak_allocated_bytes: i64,
        peak_allocated_bytes_is_set: bool,
    }
    PJRT_Executable_Destroy_Args { executable: *mut PJRT_Executable }
    PJRT_Executable_Name_Args {
        executable: *mut PJRT_Executable, executable_name: *const c_char, executable_name_size: usize,
    }
    PJRT_Executable_NumOutputs_Args { executable: *mut PJRT_Executable, num_outputs: usize }
    PJRT_Executable_GetCostAnalysis_Args {
        executable: *mut PJRT_Executable, num_properties: usize, properties: *const PJRT_NamedValue,
    }
    PJRT_Executable_OptimizedProgram_Args { executable: *mut PJRT_Executable, program: *mut PJRT_Program }
    PJRT_Executable_Serialize_Args {
        executable: *const PJRT_Executable, serialized_bytes: *const c_char, serialized_bytes_size: usize,
        serialized_executable: *mut PJRT_SerializedExecutable,
        serialized_executable_deleter: Option<unsafe extern "C" fn(*mut PJRT_SerializedExecutable)>,
    }
    PJRT_Executable_OutputElementTypes_Args {
        executable: *mut PJRT_Executable, output_types: *mut PJRT_Buffer_Type, num_output_types: usize,
    }
    PJRT_Executable_OutputDimensions_Args {
        executable: *mut PJRT_Executable, num_outputs: usize, dims: *const i64, dim_sizes: *const usize,
    }
    PJRT_Executable_Fingerprint_Args {
        executable: *mut PJRT_Executable, executable_fingerprint: *const c_char,
        executable_fingerprint_size: usize,
    }
    PJRT_Executable_GetCompiledMemoryStats_Args {
        executable: *mut PJRT_Executable, generated_code_size_in_bytes: i64, argument_size_in_bytes: i64,
        output_size_in_bytes: i64, alias_size_in_bytes: i64, temp_size_in_bytes: i64,
        host_generated_code_size_in_bytes: i64, host_argument_size_in_bytes: i64,
        host_output_size_in_bytes: i64, host_alias_size_in_bytes: i64, host_temp_size_in_bytes: i64,
        peak_memory_in_bytes: i64, total_size_in_bytes: i64, total_allocation_bytes: i64,
        indefinite_allocations: i64, peak_unpadded_heap_bytes: i64,
    }
    PJRT_Executable_DeserializeAndLoad_Args {
        client: *mut PJRT_Client, serialized_executable: *const c_char, serialized_executable_size: usize,
        loaded_executable: *mut PJRT_LoadedExecutable, overridden_serialized_compile_options: *const c_char,
        overridden_serialized_compile_options_size: usize, load_options: *mut c_void,
    }
    PJRT_LoadedExecutable_Destroy_Args { executable: *mut PJRT_LoadedExecutable }
    PJRT_LoadedExecutable_GetExecutable_Args {
        loaded_executable: *mut PJRT_LoadedExecutable, executable: *mut PJRT_Executable,
    }
    PJRT_LoadedExecutable_AddressableDevices_Args {
        executable: *mut PJRT_LoadedExecutable, addressable_devices: *const *mut PJRT_Device,
        num_addressable_devices: usize,
    }
    PJRT_LoadedExecutable_Execute_Args {
        executable: *mut PJRT_LoadedExecutable, options: *mut PJRT_ExecuteOptions,
        argument_lists: *const *const *mut PJRT_Buffer, num_devices: usize, num_args: usize,
        output_lists: *const *mut *mut PJRT_Buffer, device_complete_events: *mut *mut PJRT_Event,
        execute_device: *mut PJRT_Device,
    }
    PJRT_Buffer_Destroy_Args { buffer: *mut PJRT_Buffer }
    PJRT_Buffer_OnDeviceSizeInBytes_Args { buffer: *mut PJRT_Buffer, on_device_size_in_bytes: usize }
    PJRT_Buffer_Delete_Args { buffer: *mut PJRT_Buffer }
    PJRT_Buffer_IsDeleted_Args { buffer: *mut PJRT_Buffer, is_deleted: bool }
    PJRT_Buffer_CopyToDevice_Args {
        buffer: *mut PJRT_Buffer, dst_device: *mut PJRT_Device, dst_buffer: *mut PJRT_Buffer,
    }
    PJRT_Buffer_ToHostBuffer_Args {
        src: *mut PJRT_Buffer, host_layout: *mut PJRT_Buffer_MemoryLayout, dst: *mut c_void,
        dst_size: usize, event: *mut PJRT_Event,
    }
    PJRT_Buffer_ReadyEvent_Args { buffer: *mut PJRT_Buffer, event: *mut PJRT_Event }
    PJRT_Buffer_UnsafePointer_Args { buffer: *mut PJRT_Buffer, buffer_pointer: usize }
    PJRT_Buffer_IncreaseExternalReferenceCount_Args { buffer: *mut PJRT_Buffer }
    PJRT_Buffer_DecreaseExternalReferenceCount_Args { buffer: *mut PJRT_Buffer }
    PJRT_TopologyDescription_Create_Args {
        topology_name: *const c_char, topology_name_size: usize, create_options: *const PJRT_NamedValue,
        num_options: usize, topology: *mut PJRT_TopologyDescription,
    }
    PJRT_TopologyDescription_Destroy_Args { topology: *mut PJRT_TopologyDescription }
    PJRT_TopologyDescription_PlatformName_Args {
        topology: *const PJRT_TopologyDescription, platform_name: *const c_char, platform_name_size: usize,
    }
    PJRT_TopologyDescription_PlatformVersion_Args {
        topology: *mut PJRT_TopologyDescription, platform_version: *const c_char,
        platform_version_size: usize,
    }
    PJRT_TopologyDescription_GetDeviceDescriptions_Args {
        topology: *const PJRT_TopologyDescription, descriptions: *const *mut PJRT_DeviceDescription,
        num_descriptions: usize,
    }
    PJRT_TopologyDescription_Attributes_Args {
        topology: *mut PJRT_TopologyDescription, attributes: *const PJRT_NamedValue, num_attributes: usize,
    }
    PJRT_Compile_Args {
        topology: *const PJRT_TopologyDescription, program: *const PJRT_Program,
        compile_options: *const c_char, compile_options_size: usize, client: *mut PJRT_Client,
        executable: *mut PJRT_Executable,
    }
}
