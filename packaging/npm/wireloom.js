#!/usr/bin/env node
// Runs the binary of the package for this platform, which npm has installed as an optional dependency.
"use strict";

const { spawn } = require("node:child_process");
const { readFileSync } = require("node:fs");

const name = `@wireloom/cli-${process.platform}-${process.arch}`;
let binary;
try {
  binary = require.resolve(`${name}/bin/wireloom`);
} catch {
  console.error(`wireloom: there is no package ${name}; it is missing because of --omit=optional, or this platform has none`);
  process.exit(1);
}
const child = spawn(binary, process.argv.slice(2), { stdio: "inherit" });
// Others signal only this process. Ctrl-C at a terminal signals all of its foreground process group, this process and the binary, and a
// second SIGINT would end `serve` without its grace.
const isInForeground = () => {
  const [, , group, , , foregroundGroup] = readFileSync("/proc/self/stat", "utf8").replace(/^.*\) /s, "").split(" ");
  return group === foregroundGroup;
};
process.on("SIGINT", () => isInForeground() || child.kill("SIGINT"));
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`wireloom: ${binary}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
