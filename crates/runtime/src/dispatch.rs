//! One call, in three steps: look its plan up, build it on a miss, execute it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ops::{Arguments, DType, Dims, Number, TensorMeta};
use smallvec::SmallVec;

use crate::call::{Call, Value};
use crate::canonical;
use crate::check::PendingCheck;
use crate::compile;
use crate::device::{self, Device};
use crate::disk::Kind;
use crate::error::{Error, Result};
use crate::fallback;
use crate::generator;
use crate::hooks::{self, Traced};
use crate::layout;
use crate::memory;
use crate::node::{self, CallGraph};
use crate::operator::Operator;
use crate::origin::{Origin, Site, current_site};
use crate::out;
use crate::plan::{MetaResult, Operand, Plan, Recorded, Sink};
use crate::planner::{self, PlanError, Program};
use crate::plans;
use crate::record;
use crate::signature::Signature;
use crate::stats::{STATS, count};
use crate::storage::{Contents, Held, Storage};
use crate::stream;
use crate::wait;

thread_local! {
    /// The call between `plan` and `execute`.
    static PREPARED: Cell<Option<Box<Signature>>> = const { Cell::new(None) };
    /// An empty signature to fill next: they are too large to be made, or moved, once per call.
    static SPARE: Cell<Option<Box<Signature>>> = const { Cell::new(None) };
}

static DEBUG: AtomicBool = AtomicBool::new(false);

/// Debug mode awaits each operator, so that errors point at their line. Returns the previous state.
pub fn set_debug(debug: bool) -> bool {
    DEBUG.swap(debug, Relaxed)
}

pub fn is_debug() -> bool {
    DEBUG.load(Relaxed)
}

/// The plan of a call, or `None`: the front end then runs Meta and calls [`build`].
pub fn plan(call: &Call) -> Result<Option<Arc<Plan>>> {
    device::check_fork()?;
    let mut signature = SPARE.take().unwrap_or_default();
    signature.fill(call)?;
    let Some(plan) = lookup(call, &signature) else {
        recycle(signature);
        refuse(call)?;
        out::refuse(call)?;
        return Ok(None);
    };
    count(&STATS.cache_hits);
    let plan = admitted(call.op, plan)?;
    // Kept only where an execution follows: a call that fails must not hold its storages until the next one.
    if plan.recorded.host_fallback {
        recycle(signature);
    } else {
        PREPARED.set(Some(signature));
    }
    Ok(Some(plan))
}

/// [`ops::OpDef::refusal`]
fn refuse(call: &Call) -> Result<()> {
    let Some(refusal) = call.op.lowering.and_then(|def| def.refusal) else { return Ok(()) };
    let alone = node::single_node(call, &MetaResult::default());
    let out = call.out();
    match refusal(&Arguments { graph: &alone.graph, out: &out }) {
        Err(error) if error.user_error().is_some() => Err(planner::lowering_error(&call.op.name, error)),
        // Arguments of another form than it knows are for Meta kernels to judge.
        _ => Ok(()),
    }
}

/// Forgets the prepared call: its outputs could not be allocated.
pub fn discard_prepared() {
    PREPARED.set(None);
}

fn recycle(mut signature: Box<Signature>) {
    signature.clear();
    SPARE.set(Some(signature));
}

fn admitted(op: &Operator, plan: Arc<Plan>) -> Result<Arc<Plan>> {
    if plan.recorded.host_fallback {
        fallback::admit(op)?;
    }
    if plan.recorded.decomposed {
        count(&op.decomposed_calls);
    }
    Ok(plan)
}

fn lookup(call: &Call, signature: &Signature) -> Option<Arc<Plan>> {
    if record::is_on() {
        return None;
    }
    if let Some(plan) = plans::find(&signature.words) {
        return Some(plan);
    }
    let plan = from_disk(call, signature)?;
    plans::insert(&signature.words, &plan);
    Some(plan)
}

fn from_disk(call: &Call, signature: &Signature) -> Option<Arc<Plan>> {
    let disk = compile::disk()?;
    let bytes = disk.read(Kind::Plan, &canonical::key(call, signature))?;
    let recorded: Recorded = postcard::from_bytes(&bytes).ok()?;
    let executable = match &recorded.program {
        Some(program) => Some(compile::known(program)?),
        None => None,
    };
    Some(Plan::new(recorded, executable))
}

/// Builds the plan of the call that [`plan`] has just missed.
pub fn build(call: &Call, metas: &MetaResult) -> Result<Arc<Plan>> {
    let metas = &with_memory_format(call, left_as_they_are(call, where_values_decide(call, metas.clone())?));
    // Taken anew: Meta kernels in Python may have run other operators on this thread.
    let signature = Signature::of(call)?;
    let (signature, plan) = build_for(call, signature, metas)?;
    let plan = admitted(call.op, plan)?;
    if !plan.recorded.host_fallback {
        PREPARED.set(Some(signature));
    }
    Ok(plan)
}

/// The metadata of operators that Meta kernels refuse because they depend on values: of results whose sizes do, the
/// upper bounds.
fn where_values_decide(call: &Call, metas: MetaResult) -> Result<MetaResult> {
    let Some(def) = call.op.lowering else { return Ok(metas) };
    let number = |dtype| Some(TensorMeta { dtype, sizes: Dims::new(), strides: Dims::new() });
    let mut bounded = Vec::new();
    let functional = if let Some(bound) = def.bounded.filter(|_| !call.op.schema.is_mutable()) {
        let call_graph = node::single_node(call, &MetaResult::default());
        let outputs = bound(&Arguments { graph: &call_graph.graph, out: &[] });
        let outputs = outputs.map_err(|source| planner::lowering_error(&call.op.name, source))?;
        bounded.extend(outputs.iter().map(|output| output.dim.map_or(-1, |dim| dim as i8)));
        outputs.into_iter().map(|output| Some(output.meta)).chain([number(DType::Int64)]).collect()
    } else if let Some(dtype) = def.answer {
        vec![number(dtype)]
    } else {
        return Ok(metas);
    };
    Ok(MetaResult { functional, bounded, error: None, ..metas })
}

/// The metadata of in-place operators that have no Meta kernel: their tensors keep their form. A kernel that refuses the
/// call says something else.
fn left_as_they_are(call: &Call, metas: MetaResult) -> MetaResult {
    let lacks_kernel = |error: &String| {
        ["no fake impl or Meta kernel", "from the 'Meta' backend"].iter().any(|text| error.contains(text))
    };
    let applies = call.op.lowering.is_some() && call.op.is_in_place();
    if !applies || !metas.error.as_ref().is_some_and(lacks_kernel) {
        return metas;
    }
    let mut mutated = Vec::new();
    crate::call::for_each_tensor(call.args, &mut |slot, value| {
        if let Value::Tensor(tensor) = value
            && call.op.is_mutated_slot(call, slot)
        {
            mutated.push((slot, tensor.meta()));
        }
    });
    let functional = mutated.iter().map(|(_, meta)| Some(meta.clone())).collect();
    MetaResult { functional, mutated, ..MetaResult::default() }
}

/// Applies the operator's rule for the memory format of its result.
fn with_memory_format(call: &Call, mut metas: MetaResult) -> MetaResult {
    let deciding = call.op.lowering.map_or(&[][..], |def| def.channels_last);
    let channels_last = deciding.iter().any(|&index| match call.args.get(index) {
        Some(Value::Tensor(tensor)) => layout::suggests_channels_last(tensor.sizes, tensor.strides),
        _ => false,
    });
    if channels_last && let Some(Some(meta)) = metas.functional.first_mut() {
        meta.strides = layout::channels_last_strides(&meta.sizes);
    }
    if let Some(rule) = call.op.lowering.and_then(|def| def.strides)
        && let Some(Some(meta)) = metas.functional.first_mut()
    {
        let alone = node::single_node(call, &MetaResult::default());
        // Arguments of another form than the rule knows keep what the Meta kernel says.
        if let Ok(strides) = rule(&Arguments { graph: &alone.graph, out: &[] }, &meta.sizes) {
            meta.strides = strides;
        }
    }
    metas
}

fn build_for(
    call: &Call,
    mut signature: Box<Signature>,
    metas: &MetaResult,
) -> Result<(Box<Signature>, Arc<Plan>)> {
    if let Some(reason) = &metas.error {
        return Ok(on_the_host(call, signature, reason.clone()));
    }
    let native = call.op.lowering.is_some() && !call.op.numbers_are_attributes();
    let built = if native {
        planner::plan(call, &signature, metas, &node::single_node(call, metas))
    } else {
        Err(PlanError::Unsupported("there is no native lowering".to_owned()))
    };
    let program = match built {
        Ok(program) => program,
        Err(PlanError::Failed(error)) => return Err(error),
        Err(PlanError::Unsupported(reason)) => {
            if !call.op.numbers_are_attributes() {
                // From now on this operator's numbers are part of its key.
                call.op.specialise();
                signature = Signature::of(call)?;
            }
            match decomposed(call, &signature, metas, reason)? {
                Ok(program) => program,
                Err(reason) => return Ok(on_the_host(call, signature, reason)),
            }
        }
    };
    let plan = finish(call, program)?;
    if let Some(disk) = compile::disk()
        && let Ok(bytes) = postcard::to_stdvec(&plan.recorded)
    {
        disk.write(Kind::Plan, &canonical::key(call, &signature), &bytes);
    }
    plans::insert(&signature.words, &plan);
    Ok((signature, plan))
}

/// A program from the native lowering with its numbers as constants, else from PyTorch's decomposition.
fn decomposed(
    call: &Call,
    signature: &Signature,
    metas: &MetaResult,
    reason: String,
) -> Result<Result<Program, String>> {
    if call.op.lowering.is_some() {
        match planner::plan(call, signature, metas, &node::single_node(call, metas)) {
            Ok(program) => return Ok(Ok(program)),
            Err(PlanError::Failed(error)) => return Err(error),
            Err(PlanError::Unsupported(_)) => {}
        }
    }
    let Some(hooks) = hooks::get() else { return Ok(Err(reason)) };
    count(&STATS.traces);
    match (hooks.trace)(call)? {
        Traced::Missing(missing) => Ok(Err(format!("{reason}; {missing}"))),
        Traced::Graph(graph) => traced(call, signature, metas, &graph),
    }
}

fn traced(
    call: &Call,
    signature: &Signature,
    metas: &MetaResult,
    graph: &CallGraph,
) -> Result<Result<Program, String>> {
    match planner::plan(call, signature, metas, graph) {
        Ok(mut program) => {
            program.recorded.decomposed = true;
            Ok(Ok(program))
        }
        Err(PlanError::Unsupported(reason)) => Ok(Err(format!("in its decomposition: {reason}"))),
        Err(PlanError::Failed(error)) => Err(error),
    }
}

fn on_the_host(call: &Call, signature: Box<Signature>, reason: String) -> (Box<Signature>, Arc<Plan>) {
    fallback::remember(call.op, reason);
    let plan = Plan::host_fallback();
    plans::insert(&signature.words, &plan);
    (signature, plan)
}

fn finish(call: &Call, program: Program) -> Result<Arc<Plan>> {
    let mut recorded = program.recorded;
    let executable = match &recorded.program {
        Some(hash) => {
            record::add(&call.op.name, &program.text);
            Some(compile::executable(hash, program.text, &call.op.name)?)
        }
        None => None,
    };
    if let Some(executable) = &executable {
        recorded.temporary_bytes =
            executable.memory_stats().map_or(0, |stats| stats.temporaries.max(0) as u64);
    }
    Ok(Plan::new(recorded, executable))
}

/// Runs the plan of the call that [`plan`] or [`build`] has just prepared. `fresh[i]` is the storage of output `i`.
pub fn execute(call: &Call, plan: &Arc<Plan>, fresh: &[Option<&Arc<Storage>>]) -> Result<()> {
    let signature = match PREPARED.take() {
        Some(signature) => signature,
        None => Signature::of(call)?,
    };
    let outcome = run(call, plan, &signature, fresh);
    recycle(signature);
    outcome
}

fn run(call: &Call, plan: &Plan, signature: &Signature, fresh: &[Option<&Arc<Storage>>]) -> Result<()> {
    let Some(executable) = &plan.executable else { return Ok(()) };
    let device = device::get(call.device)?;
    let recorded = &plan.recorded;
    for (n, info) in &recorded.nonzero_hosts {
        if matches!(signature.hosts[*n as usize], Number::Int(0) | Number::Bool(false)) {
            return Err(crate::check::user_error(info.kind, info.message.clone()));
        }
    }
    device.memory().admit_temporaries(device, recorded.temporary_bytes as usize)?;
    let random = if recorded.rng_increment > 0 {
        generator::advance(signature.generator.unwrap_or(device.index() as u64), recorded.rng_increment)
    } else {
        generator::State::default()
    };
    // Finding the line takes the GIL, so it comes before storages are locked. Where none is, only a program that is
    // still running after its submission needs one.
    let site_later = plan.written.is_empty() && recorded.checks.is_empty() && !is_debug();
    let mut origin =
        Origin { op: call.op.id, site: if site_later { Site::default() } else { current_site() } };
    let mut written = lock_written(plan, signature)?;
    let completion = is_debug() || !plan.runs_inline() || stream::is_busy(device);
    let (outputs, done) = match launch(plan, executable, device, signature, &written, &random, completion)? {
        Ok(executed) => executed,
        Err(source) => {
            let error = execution_error(device, call.op, Some(plan), source);
            for (_, contents) in &mut written {
                if let Contents::Buffer(held) = &**contents
                    && held.buffer.is_deleted()
                {
                    **contents = Contents::Failed(Arc::new(error.clone()));
                }
            }
            return Err(error);
        }
    };
    let running = done.filter(|done| {
        let is_complete = done.is_ready();
        plan.launched(is_complete);
        !is_complete || done.error().is_some()
    });
    if site_later && running.is_some() {
        origin.site = current_site();
    }
    let mut outputs = outputs.into_iter();
    for ((sink, &layout), buffer) in recorded.sinks.iter().zip(&plan.layouts).zip(outputs.by_ref()) {
        let held = Contents::Buffer(Held { buffer: Arc::new(buffer), layout, origin });
        match sink {
            Sink::Fresh(k, _) => {
                let storage = fresh.get(*k as usize).copied().flatten();
                storage.ok_or_else(|| Error::internal("an output has no storage"))?.set(held);
            }
            Sink::Storage(class, _) => {
                if let Some((_, contents)) = written.iter_mut().find(|(c, _)| c == class) {
                    **contents = held;
                }
            }
        }
    }
    drop(written);
    if let Some(done) = running {
        if is_debug() {
            wait::event(&done)?.map_err(|source| execution_error(device, call.op, Some(plan), source))?;
        }
        stream::submit(device, done, origin)?;
    }
    if recorded.checks.is_empty() { Ok(()) } else { push_checks(call, plan, device, fresh, outputs, origin) }
}

/// Gathers the operands and starts the program. An error of the plugin is the inner one.
fn launch(
    plan: &Plan,
    executable: &pjrt::Executable,
    device: &'static Device,
    signature: &Signature,
    written: &Written,
    random: &generator::State,
    completion: bool,
) -> Result<std::result::Result<(pjrt::Outputs, Option<pjrt::Event>), pjrt::Error>> {
    let recorded = &plan.recorded;
    let mut made: SmallVec<[Arc<pjrt::Buffer>; 6]> = SmallVec::new();
    for operand in &recorded.operands {
        made.push(match *operand {
            Operand::Base(_) => continue,
            Operand::Start(n, dtype) => device.scalar(dtype, Number::Int(signature.starts[n as usize]))?,
            Operand::Host(n, dtype) => device.scalar(dtype, signature.hosts[n as usize])?,
            Operand::Seed => device.word(random.seed)?,
            Operand::RngOffset => device.word(random.offset)?,
        });
    }
    let mut made = made.iter();
    let mut args: SmallVec<[&Arc<pjrt::Buffer>; 12]> = SmallVec::new();
    for operand in &recorded.operands {
        args.push(match *operand {
            Operand::Base(class) => base_buffer(class, signature, written)?,
            _ => made.next().ok_or_else(|| Error::internal("an operand was not made"))?,
        });
    }
    let non_donatable: SmallVec<[i64; 4]> = recorded
        .donated
        .iter()
        // The storage and the signature hold one reference each; any other reader forbids donation.
        .filter(|&&index| Arc::strong_count(args[index as usize]) > 2)
        .map(|&index| i64::from(index))
        .collect();
    let options = pjrt::ExecuteOptions { device: device.pjrt(), non_donatable: &non_donatable, completion };
    count(&STATS.executions);
    Ok(executable.execute(&args, &options))
}

fn push_checks(
    call: &Call,
    plan: &Plan,
    device: &'static Device,
    fresh: &[Option<&Arc<Storage>>],
    flags: impl Iterator<Item = pjrt::Buffer>,
    origin: Origin,
) -> Result<()> {
    // What an in-place operator writes is what it was when a check fails.
    let mut results: Vec<_> = fresh.iter().flatten().map(|storage| Arc::downgrade(storage)).collect();
    crate::call::for_each_tensor(call.args, &mut |slot, value| {
        if let crate::call::Value::Tensor(tensor) = value
            && call.op.is_mutated_slot(call, slot)
            && !call.op.is_in_place()
        {
            results.push(Arc::downgrade(tensor.storage));
        }
    });
    for (info, flag) in plan.recorded.checks.iter().zip(flags) {
        device.checks.push(PendingCheck { flag, info: info.clone(), origin, results: results.clone() })?;
    }
    if is_debug() { device.checks.drain() } else { Ok(()) }
}

type Written<'a> = SmallVec<[(u32, parking_lot::MutexGuard<'a, Contents>); 2]>;

/// Locks the storages that the plan writes, in address order so that no two threads wait for each other.
fn lock_written<'a>(plan: &Plan, signature: &'a Signature) -> Result<Written<'a>> {
    let mut classes: SmallVec<[u32; 4]> = SmallVec::from_slice(&plan.written);
    classes.sort_by_key(|&class| signature.storages[class as usize].storage.address());
    let mut written = Written::new();
    for class in classes {
        let bound = &signature.storages[class as usize];
        let guard = bound.storage.lock();
        let unchanged = match (&*guard, &bound.contents) {
            (Contents::Buffer(now), Contents::Buffer(then)) => now.layout == then.layout,
            (Contents::Empty(_), Contents::Empty(_)) => true,
            _ => false,
        };
        if !unchanged {
            return Err(Error::Runtime(
                "a tensor was changed by another thread while it was written".to_owned(),
            ));
        }
        written.push((class, guard));
    }
    Ok(written)
}

fn base_buffer<'a>(
    class: u32,
    signature: &'a Signature,
    written: &'a Written,
) -> Result<&'a Arc<pjrt::Buffer>> {
    let locked = written.iter().find(|(c, _)| *c == class).map(|(_, guard)| &**guard);
    match locked.unwrap_or(&signature.storages[class as usize].contents) {
        Contents::Buffer(held) => Ok(&held.buffer),
        Contents::Failed(error) => Err((**error).clone()),
        Contents::Empty(_) => Err(Error::internal("a plan reads a buffer that is not there")),
    }
}

pub fn execution_error(device: &Device, op: &Operator, plan: Option<&Plan>, source: pjrt::Error) -> Error {
    if source.code() != Some(pjrt::Code::ResourceExhausted) {
        return Error::Execute { op: op.name.clone(), source: Arc::new(source) };
    }
    let needs = plan.map_or(String::new(), |plan| {
        let results: usize = plan.layouts.iter().map(|&layout| layout::get(layout).bytes()).sum();
        let bytes = results as u64 + plan.recorded.temporary_bytes;
        format!(", which needs {} for results and temporaries", memory::readable(bytes))
    });
    match device.memory().out_of_memory(device, &format!("run {}{needs}", op.name)) {
        Error::OutOfMemory { message } => Error::OutOfMemory { message: format!("{message} ({source})") },
        other => other,
    }
}
