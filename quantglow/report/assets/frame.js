"use strict";

/** Replaces the document by the page that is packed in it. The page's own policy comes on top. */
async function unpack() {
  const text = document.getElementById("packed").textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const page = await new Response(stream).text();
  document.open();
  document.write(page);
  document.close();
}

unpack().catch((error) => {
  document.getElementById("state").textContent =
    `This browser cannot unpack the page (${error}). Remedy: write it to a file by to_html().`;
});
