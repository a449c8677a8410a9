#!/bin/sh
# yt-upload: "publishes" the video, as one HTML page that holds picture and sound and can be opened anywhere.
# A service in plain shell: the protocol is only JSON lines. (yt-upload.mjs is the same service in Node.)
set -eu
trap 'exit 143' TERM   # the first process of a container ignores SIGTERM unless it says what to do

say() { printf '%s\n' "$1"; }
# Shell reads no JSON. A number, or a text without quotes and backslashes, can be picked out; for more take another language.
number() { sed -n "s/.*\"$1\": *\([0-9.]\{1,\}\).*/\1/p" "$envelope"; }
text() { sed -n "s/.*\"$1\": *\"\([^\"\\]*\)\".*/\1/p" "$envelope" | sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g'; }
# A sleep as a child in the background: a signal is heard while the shell waits, not while it sleeps.
pause() { case $pace in *[1-9]*) sleep "$1" & wait $! ;; esac; }

workdir=$ACC_WORKDIR
envelope="$workdir/envelope.json"
if [ -f "${ACC_TASK_FILE:-}" ]; then cat "$ACC_TASK_FILE" >"$envelope"; else cat >"$envelope"; fi
pace=$(number pace)
pace=${pace:-1}
title=$(text title)
title=${title:-Your take}

video="$workdir/inputs/render/video.png"
sound="$workdir/inputs/audio/normalized.wav"
for file in "$video" "$sound"; do
    [ -f "$file" ] || { say "there is no $file: which steps does this one depend on?"; exit 65; }
done

encoded() { base64 <"$1" | tr -d '\n'; }

{
    say "<!doctype html><html lang=en><meta charset=utf-8><title>$title</title>"
    say "<style>body{background:#10131a;color:#c8d0e0;font:16px system-ui;text-align:center;margin:4em}img{max-width:100%}</style>"
    say '{"type": "progress", "progress": 0.2, "message": "sending the picture"}' >&3
    pause 0.7
    printf '<h1>%s</h1><p><img alt="the video" src="data:image/png;base64,%s"></p>\n' "$title" "$(encoded "$video")"
    say '{"type": "progress", "progress": 0.6, "message": "sending the sound"}' >&3
    pause 0.7
    printf '<p><audio controls loop src="data:audio/wav;base64,%s"></audio></p>\n' "$(encoded "$sound")"
    say "<p>attempt $ACC_ATTEMPT_ID of job $ACC_JOB_ID</p></html>"
} 3>&1 >"$workdir/index.html"

bytes=$(wc -c <"$workdir/index.html" | tr -d ' ')
printf '{"video": "index.html", "bytes": %d, "job_id": "%s"}\n' "$bytes" "$ACC_JOB_ID" >"$workdir/manifest.json"
say '{"type": "artifact", "path": "index.html", "content_type": "text/html"}'
say '{"type": "artifact", "path": "manifest.json", "content_type": "application/json"}'
say '{"type": "progress", "progress": 1, "message": "published"}'
printf '{"type": "result", "results": {"page": "index.html", "bytes": %d}}\n' "$bytes"
