// Frames of the memory feed, from JSON with base64 arrays to typed arrays.

function bytesOf(text) {
  const binary = atob(text);
  const result = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) result[i] = binary.charCodeAt(i);
  return result;
}

const arrayOf = (Type, text) => (text ? new Type(bytesOf(text).buffer) : new Type(0));

/**
 * One frame: `ids` is null where it is full. Throws where lengths do not agree or a block does not exist.
 * Blocks are numbered from 1; block b is at index b - 1 of a full frame's arrays.
 */
export function decodeFrame(text) {
  const raw = JSON.parse(text);
  const frame = {
    t: raw.t,
    full: raw.full,
    total: raw.total,
    ids: raw.full ? null : arrayOf(Int32Array, raw.ids),
    states: arrayOf(Uint8Array, raw.states),
    owners: arrayOf(Int32Array, raw.owners),
    refs: arrayOf(Uint16Array, raw.refs),
    ages: raw.full ? arrayOf(Float32Array, raw.ages) : null,
    requests: raw.requests ?? [],
    numRequests: raw.num_requests ?? 0,
    stats: raw.stats,
    steps: raw.steps ?? [],
    cost: raw.cost ?? 0,
  };
  const length = raw.full ? raw.total : frame.ids.length;
  for (const array of [frame.states, frame.owners, frame.refs, ...(raw.full ? [frame.ages] : [])]) {
    if (array.length !== length) throw new Error(`a frame of ${length} blocks has an array of ${array.length}`);
  }
  if (frame.ids?.some((id) => id < 1 || id > raw.total)) throw new Error("a frame names an unknown block");
  return frame;
}

/** All blocks at one moment. `since` is when the state last changed, in seconds of the feed's clock. */
export class Snapshot {
  constructor(total) {
    this.total = total;
    this.states = new Uint8Array(total);
    this.owners = new Int32Array(total).fill(-1);
    this.refs = new Uint16Array(total);
    this.since = new Float64Array(total);
  }

  /** Takes a frame in. A change that leaves the state as it was leaves the age too. */
  apply(frame) {
    if (frame.full) {
      this.states.set(frame.states);
      this.owners.set(frame.owners);
      this.refs.set(frame.refs);
      for (let i = 0; i < this.total; i += 1) this.since[i] = frame.t - frame.ages[i];
      return;
    }
    for (let k = 0; k < frame.ids.length; k += 1) {
      const i = frame.ids[k] - 1;
      if (this.states[i] !== frame.states[k]) this.since[i] = frame.t;
      this.states[i] = frame.states[k];
      this.owners[i] = frame.owners[k];
      this.refs[i] = frame.refs[k];
    }
  }

  copy() {
    const result = new Snapshot(this.total);
    result.states.set(this.states);
    result.owners.set(this.owners);
    result.refs.set(this.refs);
    result.since.set(this.since);
    return result;
  }

  /** Number of blocks by state code. */
  counts() {
    const result = new Uint32Array(8);
    for (let i = 0; i < this.total; i += 1) result[this.states[i] & 7] += 1;
    return result;
  }
}
