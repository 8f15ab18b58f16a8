//! Envelopes as journals have them up to version 3: flags of one byte, and everything else there with lengths of four.

use super::*;

impl Envelope<'_> {
    /// Returns the bytes of today for those of an older journal.
    pub fn renew(older: &[u8]) -> Result<Vec<u8>, WireError> {
        let mut bytes = Vec::with_capacity(older.len());
        decode(older)?.encode(&mut bytes);
        Ok(bytes)
    }
}

fn decode(bytes: &[u8]) -> Result<Envelope<'_>, WireError> {
    let mut take = Take::new(bytes);
    let flags = u16::from(take.u8()?);
    let has = |flag| flags & flag != 0;
    let run_limit = take_limit(&mut take)?;
    let name = take.str()?;
    let trace = if has(HAS_TRACE) {
        let (trace_id, span_id, trace_flags) = (take.array()?, take.array()?, take.u8()?);
        Some(TraceLink { trace_id, span_id, trace_flags, trace_state: take.str()? })
    } else {
        None
    };
    let envelope = Envelope {
        run_limit,
        name,
        trace,
        baggage: take.str()?,
        submitter: has(HAS_SUBMITTER).then(|| take.u64().map(TaskId)).transpose()?,
        inputs: if has(HAS_INPUTS) { take_inputs(&mut take)? } else { Vec::new() },
        policy: if has(HAS_POLICY) { Policy::take(&mut take)? } else { Policy::default() },
        demand: if has(HAS_DEMAND) { Demand::take(&mut take)? } else { Demand::default() },
        module_version: None,
        module_digest: None,
        spec: TaskSpec::take(&mut take, Take::bytes)?,
        wants_output: has(WANTS_OUTPUT),
        traces_runtime: has(TRACES_RUNTIME),
        origin: None,
        clocks: None,
    };
    take.finish()?;
    Ok(envelope)
}
