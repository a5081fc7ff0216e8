//! Wall time of the calls that every operator pays: `cargo run --release --example latency -- PLUGIN`.

use std::time::Instant;

use pjrt::{Client, CompileOptions, ElementType, ExecuteOptions, HostSource, OptionValue, Plugin};

const ROUNDS: usize = 20;
const CALLS: usize = 500;

/// Best and median over rounds, in microseconds per call.
fn measure(name: &str, mut call: impl FnMut()) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| call());
            start.elapsed().as_secs_f64() * 1e6 / CALLS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:<44} best {:7.2} us  median {:7.2} us", rounds[0], rounds[ROUNDS / 2]);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: latency PLUGIN")?;
    let plugin = Plugin::load(path.as_ref())?;
    let client = Client::create(&plugin, &[("cpu_device_count", OptionValue::Int(1))])?;
    let device = &client.devices()[0];
    let options = ExecuteOptions { device, non_donatable: &[], completion: false };
    let with_event = ExecuteOptions { completion: true, ..options };
    let upload = |dims: &[i64]| {
        let bytes = vec![0u8; ElementType::F32.dense_bytes(dims)?];
        client.buffer_from_host(HostSource::Copy(&bytes), ElementType::F32, dims, device)
    };
    let add = |shape: &str| {
        let ty = format!("tensor<{shape}xf32>");
        let text = format!(
            "module @m {{ func.func @main(%a: {ty}, %b: {ty}) -> {ty} {{
             %0 = stablehlo.add %a, %b : {ty}\nreturn %0 : {ty} }} }}"
        );
        client.compile(&text, &CompileOptions::portable())
    };

    let small = add("16x16")?;
    let a = upload(&[16, 16])?;
    measure("execute [16,16], drop the output", || drop(small.execute(&[&a, &a], &options)));
    measure("execute [16,16] with completion event", || drop(small.execute(&[&a, &a], &with_event)));
    let mut chained = small.execute(&[&a, &a], &options)?.0.remove(0);
    measure("execute [16,16] on its last output", || {
        if let Ok((mut outputs, _)) = small.execute(&[&chained, &a], &options) {
            chained = outputs.remove(0);
        }
    });
    let larger = add("256x256")?;
    let b = upload(&[256, 256])?;
    measure("execute [256,256] and wait", || {
        drop(larger.execute(&[&b, &b], &options).map(|(outputs, _)| outputs[0].ready().await_ready()));
    });
    measure("buffer_from_host of a scalar, drop it", || drop(upload(&[])));
    let scalar = upload(&[])?;
    let mut bytes = [0; 4];
    measure("read_scalar", || drop(scalar.read_scalar(&mut bytes)));
    measure("read_into of a scalar", || drop(scalar.read_into(&mut bytes)));
    measure("is_ready", || assert!(scalar.is_ready()));
    measure("address_space reserve and release", || {
        if let Some(address) = pjrt::address_space::reserve(1024) {
            pjrt::address_space::release(address, 1024);
        }
    });
    Ok(())
}
