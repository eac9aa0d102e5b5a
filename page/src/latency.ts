/** Percentiles of the newest latencies. */

export interface Percentiles {
  p50: number;
  p90: number;
  p99: number;
  max: number;
}

/** When a message was sent, of which this is the echo: the time is in its first eight bytes. `null` if this is no echo. */
export function sentAt(data: string | ArrayBuffer, now: number): number | null {
  const time = typeof data !== 'string' && data.byteLength >= 8 ? new DataView(data).getFloat64(0) : NaN;
  return time >= 0 && time <= now ? time : null;
}

export class Latencies {
  private samples: number[] = [];
  private next = 0;
  total = 0;

  /** Keeps the newest `window` samples. */
  constructor(private readonly window = 1000) {}

  add(sample: number): void {
    this.total++;
    this.samples[this.next] = sample;
    this.next = (this.next + 1) % this.window;
  }

  clear(): void {
    this.samples = [];
    this.next = 0;
  }

  percentiles(): Percentiles | null {
    if (this.samples.length === 0) return null;
    const sorted = Float64Array.from(this.samples).sort();
    const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)]!;
    return { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: sorted[sorted.length - 1]! };
  }
}
