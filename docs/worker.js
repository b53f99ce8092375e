// A page that was opened from disk may not start a worker, and the search wants one: a hidden frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<script>self.postMessage = (data) => parent.postMessage(data, '*')</" + "script>" +
        `<script src="${new URL(url, location.href)}"></` + "script>";
      this.frame.onload = () => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      this.heard = (event) => {
        if (event.source === this.frame.contentWindow && this.onmessage) this.onmessage(event);
      };
      window.addEventListener("message", this.heard);
      document.documentElement.append(this.frame);
    }

    postMessage(data) {
      const copy = structuredClone(data); // as between a page and a worker: what one changes, the other does not see
      if (this.ready) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: copy }));
      else this.waiting.push(copy);
    }

    terminate() {
      window.removeEventListener("message", this.heard);
      this.frame.remove();
    }
  };
}
