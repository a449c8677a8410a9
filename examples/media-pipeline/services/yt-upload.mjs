// yt-upload in Node: the same page as yt-upload.sh. To use it, see accsd.toml.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const stop = (code, why) => { console.error(why); process.exit(code); };
process.on("SIGTERM", () => stop(143, "cancelled"));

const file = process.env.ACC_TASK_FILE;
const task = JSON.parse(readFileSync(file && existsSync(file) ? file : 0, "utf8"));
const pause = (seconds) => sleep(1000 * seconds * (task.options.pace ?? 1));

const escaped = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const title = String(task.options.title ?? "Your take").replace(/[&<>]/g, (sign) => escaped[sign]);

const given = (step, name) => {
  const found = task.artifacts.find((each) => each.task_key === step && each.name === name);
  return found ? readFileSync(join(task.workdir, found.path)).toString("base64") : stop(65, `no ${name} of step ${step}`);
};

say({ type: "progress", progress: 0.2, message: "sending the picture" });
const video = given("render", "video.png");
await pause(0.7);
say({ type: "progress", progress: 0.6, message: "sending the sound" });
const sound = given("audio", "normalized.wav");
await pause(0.7);

const page = `<!doctype html><html lang=en><meta charset=utf-8><title>${title}</title>
<style>body{background:#10131a;color:#c8d0e0;font:16px system-ui;text-align:center;margin:4em}img{max-width:100%}</style>
<h1>${title}</h1><p><img alt="the video" src="data:image/png;base64,${video}"></p>
<p><audio controls loop src="data:audio/wav;base64,${sound}"></audio></p>
<p>attempt ${task.attempt_id} of job ${task.job_id}</p></html>
`;
const bytes = Buffer.byteLength(page);
writeFileSync(join(task.workdir, "index.html"), page);
writeFileSync(join(task.workdir, "manifest.json"), JSON.stringify({ video: "index.html", bytes, job_id: task.job_id }));
say({ type: "artifact", path: "index.html", content_type: "text/html" });
say({ type: "artifact", path: "manifest.json", content_type: "application/json" });
say({ type: "progress", progress: 1, message: "published" });
say({ type: "result", results: { page: "index.html", bytes } });
