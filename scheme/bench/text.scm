;;; Receives masked text of 16 MiB over loopback TCP: the egg, and two transcriptions of the published algorithm in Scheme alone, whose
;;; published times went from 23 s to 285 ms. `text [LENGTH]`; bench/run builds and runs it.
;;;
;;; naive      bytes from the port, unmasked one by one; UTF-8 by a parser of combinators
;;; shortcut   the payload in one read, unmasked in place; a loop over the string for ASCII, the parser only for other text

(import scheme (chicken base) (chicken bitwise) (chicken condition) (chicken fixnum) (chicken format) (chicken io)
        (chicken process) (chicken process-context) (chicken tcp) (chicken time) wireloom)

(ping-interval 0)
(connection-timeout 0)
(close-timeout 1)
(permessage-deflate #f)
(max-frame-size (* 64 1024 1024))
(max-message-size (* 64 1024 1024))

(define message-len
  (let ((arguments (command-line-arguments)))
    (if (pair? arguments) (string->number (car arguments)) (* 16 1024 1024))))

;;; UTF-8 by combinators: a parser takes a string and a position, and returns the next position or #f

(define ((byte-in low high) text at)
  (and (fx< at (string-length text))
       (let ((byte (char->integer (string-ref text at))))
         (and (fx>= byte low) (fx<= byte high) (fx+ at 1)))))
(define ((in-sequence . parsers) text at)
  (let loop ((parsers parsers) (at at))
    (if (null? parsers) at (let ((next ((car parsers) text at))) (and next (loop (cdr parsers) next))))))
(define ((any-of . parsers) text at)
  (let loop ((parsers parsers))
    (and (pair? parsers) (or ((car parsers) text at) (loop (cdr parsers))))))
(define tail (byte-in #x80 #xbf))
(define character                       ; RFC 3629 section 4
  (any-of (byte-in 0 #x7f)
          (in-sequence (byte-in #xc2 #xdf) tail)
          (in-sequence (byte-in #xe0 #xe0) (byte-in #xa0 #xbf) tail)
          (in-sequence (byte-in #xe1 #xec) tail tail)
          (in-sequence (byte-in #xed #xed) (byte-in #x80 #x9f) tail)
          (in-sequence (byte-in #xee #xef) tail tail)
          (in-sequence (byte-in #xf0 #xf0) (byte-in #x90 #xbf) tail tail)
          (in-sequence (byte-in #xf1 #xf3) tail tail tail)
          (in-sequence (byte-in #xf4 #xf4) (byte-in #x80 #x8f) tail tail)))
(define (valid-utf8? text)
  (let loop ((at 0))
    (or (fx= at (string-length text))
        (let ((next (character text at))) (and next (loop next))))))
(define (ascii? text)
  (let ((len (string-length text)))
    (let loop ((at 0))
      (or (fx= at len)
          (and (fx< (char->integer (string-ref text at)) 128) (loop (fx+ at 1)))))))

;;; One frame, in Scheme

(define (read-header in)                ; the length and the key
  (read-byte in)
  (read-byte in)
  (let loop ((n 0) (len 0))
    (if (fx< n 8)
        (loop (fx+ n 1) (fx+ (fx* len 256) (read-byte in)))
        (let* ((a (read-byte in)) (b (read-byte in)) (c (read-byte in)) (d (read-byte in)))
          (values len (vector a b c d))))))

(define (unmask! text key)
  (let ((len (string-length text)))
    (let loop ((at 0))
      (when (fx< at len)
        (string-set! text at
                     (integer->char (fxxor (char->integer (string-ref text at)) (vector-ref key (fxand at 3)))))
        (loop (fx+ at 1))))))

(define (receive-naive in)
  (receive (len key) (read-header in)
    (let loop ((at 0) (bytes '()))
      (if (fx< at len)
          (loop (fx+ at 1) (cons (integer->char (fxxor (read-byte in) (vector-ref key (fxand at 3)))) bytes))
          (let ((text (list->string (reverse bytes))))
            (and (valid-utf8? text) text))))))

(define (receive-shortcut in)
  (receive (len key) (read-header in)
    (let ((text (make-string len)))
      (read-string! len text in)
      (unmask! text key)
      (and (or (ascii? text) (valid-utf8? text)) text))))

;;; The race

(define (wait-for process) (receive ignored (process-wait process) (void)))

(define (cpu-ms) (receive (user system) (cpu-time) (+ user system)))
(define (wall-ms) (current-process-milliseconds))

(define (median list) (list-ref (sort-numbers list) (quotient (length list) 2)))
(define (sort-numbers list)
  (define (insert number sorted)
    (if (or (null? sorted) (<= number (car sorted))) (cons number sorted) (cons (car sorted) (insert number (cdr sorted)))))
  (let loop ((list list) (sorted '())) (if (null? list) sorted (loop (cdr list) (insert (car list) sorted)))))

;; `run` receives one message. It is asked for by any bytes; the first is not counted.
(define (race name kind len count scale ask run)
  (let* ((listener (tcp-listen 0 4 "127.0.0.1"))
         (sender (process-run "python3"
                              (list "bench/sender.py" (number->string (tcp-listener-port listener)) (number->string len)
                                    (symbol->string kind) (number->string (+ count 1))))))
    (receive (in out) (tcp-accept listener)
      (let ((ask (ask in out)))
        (let loop ((left (+ count 1)) (wall '()) (cpu '()))
          (if (> left 0)
              (let ((wall-before (wall-ms)) (cpu-before (cpu-ms)))
                (ask)
                (let ((message (run)))
                  (unless (and message (= (string-length message) len)) (error "wrong message" name))
                  (let ((wall-after (wall-ms)) (cpu-after (cpu-ms)))
                    (if (> left count)
                        (loop (- left 1) wall cpu)
                        (loop (- left 1) (cons (* scale (- wall-after wall-before)) wall)
                              (cons (* scale (- cpu-after cpu-before)) cpu))))))
              (printf "  ~A ~A: ~A ms wall, fastest ~A; ~A ms processor, fastest ~A~A~%"
                      kind name (median wall) (apply min wall) (median cpu) (apply min cpu)
                      (if (= scale 1) "" (sprintf " (a ~Ath, scaled)" scale))))))
      (close-input-port in)
      (close-output-port out))
    (tcp-close listener)
    (wait-for sender)))

(define ports #f)
(define ws #f)

(define (ask-in-scheme in out)          ; answers the handshake
  (let loop () (unless (string=? (read-line in) "") (loop)))
  (write-string "HTTP/1.1 101 x\r\n\r\n" #f out)
  (set! ports in)
  (lambda () (write-string "go" #f out) (flush-output out)))

(define (ask-the-egg in out)
  (set! ws (websocket-accept in out))
  (lambda () (send-message "go" 'text ws)))

(printf "one masked text message of ~A bytes over loopback, libwireloom ~A~%"
        message-len (wireloom-version))

(for-each
 (lambda (kind)
   (race 'egg kind message-len 20 1 ask-the-egg (lambda () (receive (message type) (receive-message ws) message)))
   (race 'shortcut kind message-len 3 1 ask-in-scheme (lambda () (receive-shortcut ports)))
   (race 'naive kind (quotient message-len 64) 1 64 ask-in-scheme (lambda () (receive-naive ports))))
 '(ascii multibyte))
