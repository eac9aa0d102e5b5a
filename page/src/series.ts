/** Columns of figures over time, as a plot needs them, of a bounded length. */
export class Series {
  readonly times: number[] = [];
  readonly columns: (number | null)[][];

  constructor(
    width: number,
    private readonly max = 120,
  ) {
    this.columns = Array.from({ length: width }, () => []);
  }

  add(time: number, values: (number | null)[]): void {
    this.times.push(time);
    for (const [index, column] of this.columns.entries()) column.push(values[index] ?? null);
    if (this.times.length > this.max) {
      this.times.shift();
      for (const column of this.columns) column.shift();
    }
  }

  clear(): void {
    this.times.length = 0;
    for (const column of this.columns) column.length = 0;
  }
}
